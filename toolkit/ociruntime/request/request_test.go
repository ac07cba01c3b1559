package request

import (
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
)

// testRequest describes the request of a container.
type testRequest struct {
	env         string // separated by spaces
	mounts      []string
	annotations map[string]string
	hook        string
	privileged  bool
	envvar      bool // the settings
	volumes     bool
}

func (a testRequest) of() (Request, error) {
	spec := &oci.Spec{Process: &oci.Process{Env: strings.Fields(a.env)}, Annotations: a.annotations}
	if a.privileged {
		spec.Process.Capabilities = &oci.LinuxCapabilities{Bounding: []string{"CAP_CHOWN", "CAP_SYS_ADMIN"}}
	}
	for _, m := range a.mounts {
		spec.Mounts = append(spec.Mounts, oci.Mount{Source: "/dev/null", Destination: m})
	}
	if a.hook != "" {
		spec.Hooks = &oci.Hooks{Prestart: []oci.Hook{{Path: a.hook}}} //nolint:staticcheck // as Docker does
	}
	s := DefaultSettings()
	s.AcceptEnvvar, s.AcceptVolumeMounts = a.envvar, a.volumes
	return Parse(spec, s)
}

func TestOf(t *testing.T) {
	const dir = "/var/run/nvidia-container-devices/"
	hook := "/usr/bin/" + HookName
	for name, c := range map[string]struct {
		testRequest
		want Request // Capabilities 0 is Default where there are devices
	}{
		"nothing":              {testRequest{}, Request{}},
		"void":                 {testRequest{env: "NVIDIA_VISIBLE_DEVICES=void", envvar: true}, Request{}},
		"void among others":    {testRequest{env: "NVIDIA_VISIBLE_DEVICES=0,void", envvar: true}, Request{}},
		"empty":                {testRequest{env: "NVIDIA_VISIBLE_DEVICES=", envvar: true}, Request{}},
		"unset, old image":     {testRequest{env: "CUDA_VERSION=9.0", envvar: true}, Request{}},
		"all":                  {testRequest{env: "NVIDIA_VISIBLE_DEVICES=all", envvar: true}, Request{Devices: []string{"all"}}},
		"none":                 {testRequest{env: "NVIDIA_VISIBLE_DEVICES=none", envvar: true}, Request{DriverOnly: true}},
		"indices":              {testRequest{env: "NVIDIA_VISIBLE_DEVICES=0,,1,0", envvar: true}, Request{Devices: []string{"0", "1"}}},
		"UUIDs":                {testRequest{env: "NVIDIA_VISIBLE_DEVICES=GPU-a,MIG-b", envvar: true}, Request{Devices: []string{"GPU-a", "MIG-b"}}},
		"MIG by place":         {testRequest{env: "NVIDIA_VISIBLE_DEVICES=0:1", envvar: true}, Request{Devices: []string{"0:1"}}},
		"CDI name":             {testRequest{env: "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0", envvar: true}, Request{Devices: []string{"nvidia.com/gpu=0"}}},
		"the last one holds":   {testRequest{env: "NVIDIA_VISIBLE_DEVICES=all NVIDIA_VISIBLE_DEVICES=1", envvar: true}, Request{Devices: []string{"1"}}},
		"privileged":           {testRequest{env: "NVIDIA_VISIBLE_DEVICES=all", privileged: true}, Request{Devices: []string{"all"}}},
		"capabilities":         {testRequest{env: "NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=video", envvar: true}, Request{Devices: []string{"0"}, Capabilities: video}},
		"mount":                {testRequest{mounts: []string{dir + "GPU-a", dir + "GPU-a/"}, volumes: true}, Request{Devices: []string{"GPU-a"}}},
		"mount, /run":          {testRequest{mounts: []string{"/run/nvidia-container-devices/GPU-a"}, volumes: true}, Request{Devices: []string{"GPU-a"}}},
		"mount of a CDI name":  {testRequest{mounts: []string{dir + "cdi/nvidia.com/gpu/0", dir + "cdi/nvidia.com/gpu=1"}, volumes: true}, Request{Devices: []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1"}}},
		"mount of a channel":   {testRequest{mounts: []string{dir + "imex/0"}, volumes: true}, Request{Channels: []string{"0"}}},
		"mount, not accepted":  {testRequest{mounts: []string{dir + "GPU-a"}}, Request{}},
		"mount elsewhere":      {testRequest{mounts: []string{"/var/run/nvidia-container-devices", "/x"}, volumes: true}, Request{}},
		"mount before env":     {testRequest{mounts: []string{dir + "GPU-a"}, env: "NVIDIA_VISIBLE_DEVICES=all", volumes: true, envvar: true}, Request{Devices: []string{"GPU-a"}}},
		"annotation":           {testRequest{annotations: map[string]string{"cdi.k8s.io/b": "k8s.gpuready.io/gpu=GPU-a", "cdi.k8s.io/a": "nvidia.com/gpu=0, nvidia.com/gpu=1", "other": "nvidia.com/gpu=2"}}, Request{Devices: []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1", "k8s.gpuready.io/gpu=GPU-a"}}},
		"CRI-O's annotation":   {testRequest{annotations: map[string]string{"cdi.k8s.io/a": "nvidia.com/gpu=0", "io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.cri-o.Annotations": `{"cdi.k8s.io/a":"nvidia.com/gpu=0"}`}}, Request{Devices: []string{"nvidia.com/gpu=0"}}},
		"all in other letters": {testRequest{env: "NVIDIA_VISIBLE_DEVICES=ALL", envvar: true}, Request{Devices: []string{"all"}}},
		"all by other names":   {testRequest{env: "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=All,k8s.gpuready.io/gpu=aLL,,nvidia.com/gpu=all", envvar: true}, Request{Devices: []string{"nvidia.com/gpu=all", "k8s.gpuready.io/gpu=all"}}},
		"annotation first":     {testRequest{annotations: map[string]string{"cdi.k8s.io/a": "nvidia.com/gpu=0"}, mounts: []string{dir + "1"}, env: "NVIDIA_VISIBLE_DEVICES=2", volumes: true}, Request{Devices: []string{"nvidia.com/gpu=0"}}},
		"docker run --gpus":    {testRequest{hook: hook, env: "NVIDIA_VISIBLE_DEVICES=all NVIDIA_VISIBLE_DEVICES=0,1"}, Request{Devices: []string{"0", "1"}, RemoveHook: true}},
		"Docker's hook, void":  {testRequest{hook: hook, env: "NVIDIA_VISIBLE_DEVICES=void"}, Request{RemoveHook: true}},
		"another hook":         {testRequest{hook: "/usr/bin/other", env: "NVIDIA_VISIBLE_DEVICES=void"}, Request{}},
		"channels":             {testRequest{env: "NVIDIA_IMEX_CHANNELS=0,2", envvar: true}, Request{Channels: []string{"0", "2"}}},
		"features":             {testRequest{env: "NVIDIA_VISIBLE_DEVICES=0 NVIDIA_GDS=enabled NVIDIA_MOFED=enabled NVIDIA_GDRCOPY=disabled", envvar: true}, Request{Devices: []string{"0"}, Features: []string{"gds", "mofed"}}},
		"MIG administration":   {testRequest{env: "NVIDIA_VISIBLE_DEVICES=all NVIDIA_MIG_CONFIG_DEVICES=all NVIDIA_MIG_MONITOR_DEVICES=all", privileged: true}, Request{Devices: []string{"all"}, MIGConfig: true, MIGMonitor: true}},
		"MIG without GPUs":     {testRequest{env: "NVIDIA_MIG_CONFIG_DEVICES=all"}, Request{}},
		"requirements":         {testRequest{env: "NVIDIA_VISIBLE_DEVICES=0 NVIDIA_REQUIRE_B=driver>=1 NVIDIA_REQUIRE_CUDA=cuda>=12.4 NVIDIA_REQUIRE_JETPACK=x", envvar: true}, Request{Devices: []string{"0"}, Requirements: []string{"cuda>=12.4", "driver>=1"}}},
		"requirements off":     {testRequest{env: "NVIDIA_VISIBLE_DEVICES=0 NVIDIA_REQUIRE_CUDA=cuda>=12.4 NVIDIA_DISABLE_REQUIRE=1", envvar: true}, Request{Devices: []string{"0"}}},
		"an old image's":       {testRequest{env: "NVIDIA_VISIBLE_DEVICES=0 CUDA_VERSION=9.2.148", envvar: true}, Request{Devices: []string{"0"}, Requirements: []string{"cuda>=9.2"}}},
		"nonsense for nothing": {testRequest{env: "NVIDIA_DRIVER_CAPABILITIES=nonsense"}, Request{}},
	} {
		t.Run(name, func(t *testing.T) {
			if !c.want.Empty() && c.want.Capabilities == 0 {
				c.want.Capabilities = defaultCapabilities
			}
			got, err := c.of()
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

// An image can set any environment, and with Podman any annotations.
func TestImagesCannotGrantThemselvesGPUs(t *testing.T) {
	for _, c := range []struct {
		testRequest
		want string
	}{
		{testRequest{env: "NVIDIA_VISIBLE_DEVICES=all"}, "accept-nvidia-visible-devices-envvar-when-unprivileged"},
		{testRequest{env: "NVIDIA_VISIBLE_DEVICES=none"}, "not honoured"},
		{testRequest{env: "NVIDIA_IMEX_CHANNELS=0"}, "not honoured"},
		{testRequest{annotations: map[string]string{"cdi.k8s.io/a": "nvidia.com/gpu=0", "io.container.manager": "libpod"}}, "podman run --device"},
		{testRequest{annotations: map[string]string{"cdi.k8s.io/a": "nvidia.com/gpu=0", "io.container.manager": "an image's"}}, "podman run --device"},
		{testRequest{annotations: map[string]string{"cdi.k8s.io/a": "nvidia.com/gpu=0", "io.podman.annotations.cid-file": "x"}}, "podman run --device"},
		{testRequest{hook: HookName, env: "NVIDIA_VISIBLE_DEVICES=all", annotations: map[string]string{"io.container.manager": "libpod"}}, "not honoured"},
		{testRequest{hook: HookName, env: "NVIDIA_VISIBLE_DEVICES=all", annotations: map[string]string{"io.kubernetes.cri-o.ContainerType": "container"}}, "not honoured"},
	} {
		got, err := c.of()
		require.NoError(t, err)
		require.True(t, got.Empty(), c)
		require.Len(t, got.Warnings, 1)
		require.Contains(t, got.Warnings[0], c.want)
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		testRequest
		want string
	}{
		{testRequest{env: "NVIDIA_VISIBLE_DEVICES=0"}, `NVIDIA_VISIBLE_DEVICES=0, which unprivileged containers may not: set "accept-nvidia-visible-devices-envvar-when-unprivileged"`},
		{testRequest{env: "NVIDIA_VISIBLE_DEVICES=all,GPU-a"}, "may not"},
		{testRequest{env: "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0"}, "may not"},
		{testRequest{env: "NVIDIA_VISIBLE_DEVICES=none,0", envvar: true}, `"none" cannot be combined with other names`},
		{testRequest{env: "NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=compute,gfx", envvar: true}, `NVIDIA_DRIVER_CAPABILITIES=compute,gfx: "gfx" is no driver capability`},
		{testRequest{env: "NVIDIA_VISIBLE_DEVICES=0 NVIDIA_MIG_CONFIG_DEVICES=all", envvar: true}, "NVIDIA_MIG_CONFIG_DEVICES=all: only privileged"},
		{testRequest{env: "NVIDIA_VISIBLE_DEVICES=0 NVIDIA_MIG_MONITOR_DEVICES=all", envvar: true}, "NVIDIA_MIG_MONITOR_DEVICES=all: only privileged"},
		{testRequest{mounts: []string{"/var/run/nvidia-container-devices/cdi/x"}, volumes: true}, "is not <vendor>/<class>/<name>"},
		{testRequest{env: "NVIDIA_VISIBLE_DEVICES=" + numbered(maxNames+1), envvar: true}, "more than"},
	} {
		_, err := c.of()
		require.ErrorContains(t, err, c.want)
	}
}

func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat("x", i+1) + ",")
	}
	return b.String()
}

func TestCheck(t *testing.T) {
	const cuda128 = "cuda>=12.8 brand=unknown,driver>=470,driver<471 brand=tesla,driver>=535,driver<536"
	for _, c := range []struct{ requirement, driver, want string }{
		{"cuda>=12.4", "550.54.15", ""},
		{"cuda>=12.4", "535.104.05", "requires cuda>=12.4, and this node has driver 535.104.05 with CUDA 12.2"},
		{"cuda>=13.0", "580.95.05", ""},
		{"cuda>=13.1", "580.95.05", "with CUDA 13.0"},
		{"cuda>=12.4.1", "550.54.15", ""},
		{"cuda>=99.0", "999.1", ""}, // newer than this program: accepted
		{"cuda<12.0", "999.1", ""},
		{"cuda<12.0", "550.1", "requires"},
		{"driver>=550", "550.54.15", ""},
		{"driver>=550.60", "550.54.15", "requires"},
		{"driver<551", "550.54.15", ""},
		{"driver=550", "550.0", ""},
		{"driver!=550", "550", "requires"},
		{cuda128, "570.1", ""},
		{cuda128, "535.54", ""}, // by the brand, which is unknown
		{cuda128, "545.1", "requires"},
		{"arch>=8.0", "550.1", ""},
		{"cuda>=12.4", "", ""},
		{"cuda>=10.0", "367.1", ""},
		{"", "550.1", ""},
		{" , ", "550.1", ""},
		{"cuda", "550.1", "is not a condition"},
		{"cuda!12", "550.1", "has no operator"},
		{"cuda>=new", "550.1", `"new" is no version`},
	} {
		err := check([]string{c.requirement}, c.driver)
		if c.want == "" {
			require.NoError(t, err, c)
		} else {
			require.ErrorContains(t, err, c.want, c)
			require.ErrorContains(t, err, "NVIDIA_DISABLE_REQUIRE=true", c)
		}
	}
}

func FuzzRequest(f *testing.F) {
	f.Add("0,GPU-a", "compute", "cuda>=12.4 brand=tesla,driver<471", "/var/run/nvidia-container-devices/cdi/a/b/c")
	for _, part := range parts {
		f.Add(part, "all", "cuda", "/var/run/nvidia-container-devices/"+part)
	}
	f.Fuzz(func(t *testing.T, visible, capabilities, require, mount string) {
		spec := &oci.Spec{
			Process: &oci.Process{Env: []string{"NVIDIA_VISIBLE_DEVICES=" + visible, "NVIDIA_DRIVER_CAPABILITIES=" + capabilities, "NVIDIA_REQUIRE_X=" + require}},
			Mounts:  []oci.Mount{{Source: "/dev/null", Destination: mount}},
		}
		r, err := Parse(spec, Settings{AcceptEnvvar: true, AcceptVolumeMounts: true})
		short(t, err, r.Warnings)
		if err := checkNames(r.Devices); err != nil {
			t.Fatal(err)
		}
		if err == nil {
			short(t, check(r.Requirements, "580.95.05"), nil)
			short(t, check(r.Requirements, require), nil)
		}
		if r, _ := Parse(spec, Settings{}); !r.Empty() {
			t.Fatalf("an image gives itself %+v", r)
		}
	})
}
