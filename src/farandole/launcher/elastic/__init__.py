"""Jobs whose workers come and go: which hosts there are, which slots are worth a worker, and who is started when."""
