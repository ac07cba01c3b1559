// Package cudatest tests the simulator's libcuda through its binary interface,
// as programs use it. simulator/cuda itself is C and cannot hold Go files.
package cudatest

//go:generate go run ./stubs -o ../cuda/stubs.c testdata/libcuda1-535.txt testdata/libcuda-13.txt
