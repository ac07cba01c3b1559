package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// report reports a message to the caller. containerd and CRI-O read the reason of a failure
// from the log that they named, in runc's format; people and Podman read it from standard
// error. A warning only goes to one of them.
func report(call call, level, message string) {
	message = "gpu-oci-runtime: " + record.Clean(strings.ReplaceAll(message, "\n", "; "), maxMessage)
	logged := call.Log != "" && appendTo(call.Log, line(call.LogFormat, level, message)) == nil
	if level == "error" || !logged {
		fmt.Fprintln(os.Stderr, message)
	}
}

// maxMessage limits a message. Runtimes show it in a pod's events, and a part of it may
// come from the container.
const maxMessage = 2000

// line returns one line of a log in runc's format.
func line(format, level, message string) []byte {
	now := time.Now().Format(time.RFC3339)
	if format != "json" {
		return fmt.Appendf(nil, "time=%q level=%s msg=%q\n", now, level, message)
	}
	data, _ := json.Marshal(map[string]string{"level": level, "msg": message, "time": now}) // strings always can be
	return append(data, '\n')
}

func appendTo(name string, data []byte) error {
	// Opening a pipe without a reader would block.
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
