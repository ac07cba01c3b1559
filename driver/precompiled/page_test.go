package main

import (
	"io"
	"testing"

	"github.com/gpuready/gpuready/test/lab/golden"
)

//go:generate go test -tags grpcnotrace -run ^TestThePageListsTheVariables$ . -update

func TestThePageListsTheVariables(t *testing.T) {
	o := newOptions(makeUsage, io.Discard)
	for _, own := range []string{"os", "recipes", "program"} {
		delete(o.Env, own) // set by the Makefiles
	}
	for flag, from := range map[string]string{"builder-user": "user.name", "builder-email": "user.email"} {
		o.Lookup(flag).DefValue = "git config " + from
	}
	golden.RequireSection(t, "../../docs/driver.md", "<!-- variables of make image: made by go generate ./driver/precompiled -->\n",
		"<!-- end of variables of make image -->\n", "\n"+golden.Variables(o.FlagSet, o.Env)+"\n")
}
