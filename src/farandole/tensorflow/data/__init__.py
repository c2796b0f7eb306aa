"""TensorFlow's data service on the workers of a job, for the training in another job, with Horovod's names."""
