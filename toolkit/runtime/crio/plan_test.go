package crio

import (
	"flag"
	"testing"

	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestPlan runs the cases of testdata. In many of them, 10-crio.conf is that of the
// package cri-o (github.com/cri-o/packaging), shortened to what a plan reads.
func TestPlan(t *testing.T) {
	for _, c := range runtimetest.Cases(t) {
		t.Run(c.Name, func(t *testing.T) { c.Check(t, Plan, *update) })
	}
}

func FuzzPlan(f *testing.F) {
	f.Add("[crio.runtime]\ndefault_runtime = 'crun'\n", "[crio.runtime.runtimes.nvidia]\nruntime_path='/x'\n", "1.31.0", "nvidia", true)
	f.Add("crio = { runtime = { runtimes = { a = {} } } }", "[crio.runtime.runtimes.crun]\nmonitor_env = []\n", "", "crun", false)
	f.Add("", "[[crio.runtime]]", "1.28", "a.b", true)
	f.Fuzz(func(t *testing.T, main, other, version, handler string, late bool) {
		name := "/etc/crio/crio.conf.d/a"
		if late {
			name = "/etc/crio/crio.conf.d/z"
		}
		files := runtimetest.Mem{"/etc/crio/crio.conf": main, name: other}
		place := runtime.Place{Config: "/etc/crio/crio.conf", DropIn: "/etc/crio/crio.conf.d/m", Always: true, Version: version}
		want := runtime.Want{CDI: late, CDIDirs: []string{other}, Default: handler, Handlers: []runtime.Handler{{Name: handler, Program: version}}}
		files.Check(t, Plan, place, want)
	})
}
