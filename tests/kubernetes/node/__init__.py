"""A stand-in for the kubelet: a node whose pods are processes in namespaces of this machine, without images.

It is not a kubelet. It has: network, mount, process, IPC and host name namespaces; ConfigMap, Secret, projected,
emptyDir, hostPath and hostPath-backed claims as volumes, with a delay for changes; init containers, restart policies,
probes (exec, tcpSocket, httpGet), SIGTERM, grace and SIGKILL, preStop commands; users, groups, capabilities,
no-new-privileges and read-only roots; memory limits; names of pods and headless services in /etc/hosts; logs and exec;
eviction; extended resources. What it has not: images (containers see the machine's own files, through a layer of their
own), cluster IPs, NetworkPolicies, seccomp profiles, limits of processors, sidecars, attach and port-forward.
"""
