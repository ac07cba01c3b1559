// Package nvmltest tries the simulated libnvidia-ml with programs that nobody
// here wrote: go-nvml, go-nvlib and go-gpuallocator. A process can load only one
// libnvidia-ml ever, so each test runs its body in a process of its own.
package nvmltest
