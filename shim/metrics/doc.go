// Package metrics translates measurements of a cgroup into the messages that containerd, the kubelet and cAdvisor read:
// io.containerd.cgroups.v1.Metrics and io.containerd.cgroups.v2.Metrics.
//
// Data in: cgroup.Stats. Data out: a message. It makes no system call and keeps nothing. What the kernel did not tell
// stays zero. Times are nanoseconds in v1 and microseconds in v2, sizes bytes. Minimum kernel: none.
package metrics
