package distro

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

// CheckPlan returns an *runtime.Refusal if a plan must not be applied here: it would write
// to a read-only place, or to a file that a program rewrites, and be lost at the next
// start.
func (p Profile) CheckPlan(root *host.Root, plan runtime.Plan) error {
	for _, edit := range plan.Edits {
		message := ""
		switch {
		case p.Restart.Message != "" && !p.Writable(root, edit.File):
			message = p.Restart.Message
		case !p.Writable(root, edit.File):
			message = "it cannot be written on " + p.Title + "; make the runtime read another file, and name it with RUNTIME_CONFIG"
		case edit.File == p.Config && p.Owner != "":
			message = p.Owner + p.remedy()
		case slices.Contains(p.Generated, edit.File):
			message = p.Title + " generates it from " + p.Config + p.remedy()
		}
		if message != "" {
			return &runtime.Refusal{File: edit.File, Key: edit.Key, Message: message}
		}
	}
	return nil
}

// remedy returns the advice for a change that would be overwritten.
func (p Profile) remedy() string {
	text := ", so that a change would be lost"
	if p.DropIn == "" || p.Engine != runtime.Containerd || p.Restart.Method == Manual {
		return strings.TrimSuffix(text+"; "+p.Restart.Message, "; ")
	}
	return text + fmt.Sprintf("; upgrade %s to a release with containerd 2 that reads drop-ins from %s, since with containerd 1 a drop-in replaces the tables that it should extend", p.Title, p.DropIn[:strings.LastIndex(p.DropIn, "/")])
}
