"""TensorFlow's data service on the workers of a job, for the training of another one: Horovod's names."""
