"""Several hosts on one Linux machine: what `farandole run -H h1:2,h2:2` meets elsewhere, made of namespaces."""
