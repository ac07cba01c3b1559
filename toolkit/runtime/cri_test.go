package runtime

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/nodestate"
)

func TestRefusedConnectionIsNotASilentRuntime(t *testing.T) {
	err := status.Error(codes.Unavailable, `connection error: desc = "transport: error while dialing: connect /run/x.sock: permission denied"`)
	message := describeSilence("/run/x.sock", QueryTimeout, err)
	require.Contains(t, message, "no permission to connect to the container runtime at /run/x.sock (")
	require.Contains(t, message, "run as root of the host, and let SELinux and AppArmor allow it")
	require.NotContains(t, message, "check that it runs")
}

// A runtime's response is published in a state that others read.
func TestAnyResponseFitsIntoAState(t *testing.T) {
	boot, err := nodestate.BootID()
	require.NoError(t, err)
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`/[a-z/]{0,100}`), rapid.Just("/"+strings.Repeat("y", 5000)), rapid.Just("\xff\x00\n"), rapid.Just(strings.Repeat("x", 70000)))
		config := configText(rapid.SliceOfN(text, 0, 100).Draw(t, "dirs"), rapid.SliceOfN(text, 0, 100).Draw(t, "runtimes"))
		verbose := &runtimeapi.StatusResponse{Info: map[string]string{"config": rapid.OneOf(text, rapid.Just(config)).Draw(t, "config")}}
		for range rapid.IntRange(0, 100).Draw(t, "handlers") {
			verbose.RuntimeHandlers = append(verbose.RuntimeHandlers, &runtimeapi.RuntimeHandler{Name: text.Draw(t, "handler")})
		}
		a, err := parseCRI(&runtimeapi.VersionResponse{RuntimeName: text.Draw(t, "name"), RuntimeVersion: text.Draw(t, "version")}, verbose)
		if err != nil {
			return
		}
		a.Socket = "/run/containerd/containerd.sock"
		_, a.Message = Advise(a, "/var/run/cdi", func(a, b string) bool { return a == b })
		_ = AdviseNRI(a, "/var/run/nri/nri.sock")
		if err := nodestate.Write(dir, nodestate.State{
			Component: nodestate.Toolkit, BootID: boot, Phase: nodestate.Ready, Toolkit: &nodestate.ToolkitInfo{Runtime: &a.Runtime},
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func configText(dirs, runtimes []string) string {
	quote := func(list []string, after string) string {
		quoted := make([]string, len(list))
		for i, s := range list {
			quoted[i] = strings.ReplaceAll(strings.ReplaceAll(`"`+strings.ToValidUTF8(s, "")+`"`, "\n", `\n`), "\x00", `\u0000`) + after
		}
		return strings.Join(quoted, ",")
	}
	return `{"cdiSpecDirs":[` + quote(dirs, "") + `],"containerd":{"runtimes":{` + quote(runtimes, ":{}") + `}}}`
}

func FuzzParseCRI(f *testing.F) {
	f.Add("containerd", "v2.2.1", `{"enableCDI":true,"cdiSpecDirs":["/etc/cdi"],"containerd":{"runtimes":{"runc":{}}}}`)
	f.Add("cri-o", "1.34.0", `{"crio":{"CDISpecDirs":["/etc/cdi"],"DefaultRuntime":"crun"}}`)
	f.Fuzz(func(t *testing.T, name, version, config string) {
		a, err := parseCRI(&runtimeapi.VersionResponse{RuntimeName: name, RuntimeVersion: version}, &runtimeapi.StatusResponse{Info: map[string]string{"config": config}})
		if err == nil && (a.Name == "" || len(a.CDIDirs) > maxNames || len(a.Handlers) > maxNames) {
			t.Error(a)
		}
	})
}
