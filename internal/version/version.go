// Package version holds what the build stamped into the binary.
package version

import "runtime/debug"

// Set with -ldflags -X by the Makefile; empty in `go test` and `go run`.
var (
	version string
	commit  string
)

// String returns "v0.1.0 (abc1234)" as stamped, else what the Go tool recorded.
func String() string {
	v := version
	if v == "" {
		v = "devel"
		if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
			v = info.Main.Version
		}
	}
	if commit == "" {
		return v
	}
	return v + " (" + commit + ")"
}
