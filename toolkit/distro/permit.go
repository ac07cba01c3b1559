package distro

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/engine"
)

// Permit says why a plan is not to be applied here: it would write into a file that a
// program writes anew, or into a place that cannot be written, and be lost at the next
// start. The error is an *engine.Refusal.
func (p Profile) Permit(root *host.Root, plan engine.Plan) error {
	for _, edit := range plan.Edits {
		message := ""
		switch {
		case p.Restart.Message != "" && !p.Writable(root, edit.File):
			message = p.Restart.Message
		case !p.Writable(root, edit.File):
			message = "it cannot be written on " + p.Title + "; have the runtime read another file, and say which with RUNTIME_CONFIG"
		case edit.File == p.Config && p.Owner != "":
			message = p.Owner + p.instead()
		case slices.Contains(p.Made, edit.File):
			message = p.Title + " makes it of " + p.Config + p.instead()
		}
		if message != "" {
			return &engine.Refusal{File: edit.File, Key: edit.Key, Message: message}
		}
	}
	return nil
}

// instead says what to do where a change would be written over.
func (p Profile) instead() string {
	text := ", so that a change would be lost"
	if p.DropIn == "" || p.Engine != engine.Containerd || p.Restart.Door == Nobody {
		return strings.TrimSuffix(text+"; "+p.Restart.Message, "; ")
	}
	return text + fmt.Sprintf("; upgrade %s to a release with containerd 2 that reads drop-ins from %s, since containerd 1 has a drop-in replace what it is to be added to", p.Title, p.DropIn[:strings.LastIndex(p.DropIn, "/")])
}
