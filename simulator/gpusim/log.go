package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
)

func logging() command {
	return command{
		name:    "log",
		summary: "show why libcuda refused a module or stopped a kernel",
		text: `
Each line has the time, the program and its process, the GPU, the CUDA error, and
what caused it: the instruction that the simulator does not execute and its line,
or the thread and the address of an access out of bounds. The log begins again
when it reaches 1 MiB.

Programs in containers cannot write it: there, GPUSIM_VERBOSE=1 in a program's
environment has libcuda print the same on standard error.`,
		example: "gpusim log --root /tmp/driver\ngpusim log | grep CUDA_ERROR_NOT_SUPPORTED",
		begin: func(c *call) func() error {
			c.rootFlag()
			return c.log
		},
	}
}

// log prints the log. Every program may write to it, so log leaves out control characters.
func (c *call) log() error {
	f, err := c.driver().Log()
	if err != nil {
		return err
	}
	data, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	_, err = fmt.Fprint(c.out, strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, string(data)))
	return err
}
