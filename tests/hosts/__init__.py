"""Several hosts on one Linux machine, made of namespaces, for tests of jobs such as `farandole run -H h1:2,h2:2`."""
