package containerd

import (
	"errors"
	"flag"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestPlan(t *testing.T) {
	for _, c := range runtimetest.Cases(t) {
		t.Run(c.Name, func(t *testing.T) { c.Check(t, Plan, *update) })
	}
}

func FuzzPlan(f *testing.F) {
	const cri = "version = 2\nimports = ['conf.d/*.toml']\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\noptions = {}\n"
	f.Add(cri, "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n", "2.0.0", "nvidia", true)
	f.Add(cri, "", "1.7.1", "nvidia", false)
	f.Add("plugins.cri.containerd.runtimes = []", "x", "1.6.20", "", false)
	f.Add("{{ template }}", "version = 1", "2.3.0", "a.b", true)
	f.Fuzz(func(t *testing.T, main, other, version, handler string, always bool) {
		files := runtimetest.Mem{"/etc/c/config.toml": main, "/etc/c/conf.d/a.toml": other}
		place := runtime.Place{Config: "/etc/c/config.toml", DropIn: "/etc/c/conf.d/b.toml", Always: always, Version: version}
		want := runtime.Want{CDI: always, CDIDirs: []string{other}, Default: handler, Handlers: []runtime.Handler{{Name: handler, Program: version}}}
		files.Check(t, Plan, place, want)
	})
}

func TestReadErrorsAreNotRefusals(t *testing.T) {
	_, err := Plan(unreadable{}, runtime.Place{Version: "2.0.0", Config: "/c"}, runtime.Want{})
	require.ErrorIs(t, err, errDisk)
}

var errDisk = errors.New("disk broken")

type unreadable struct{ runtimetest.Mem }

func (unreadable) ReadFile(string, int64) ([]byte, error) { return nil, errDisk }
