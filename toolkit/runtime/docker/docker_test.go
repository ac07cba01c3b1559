package docker

import (
	"flag"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

// texts are files by their paths.
type texts map[string]string

func (t texts) ReadFile(name string, _ int64) ([]byte, error) {
	data, ok := t[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return []byte(data), nil
}

func (t texts) Glob(string, string) ([]string, error) { return nil, nil }

const config = "/etc/docker/daemon.json"

var nvidia = runtime.Handler{Name: "nvidia", Program: "/usr/local/nvidia/gpuready/gpu-oci-runtime"}

var (
	handler = runtime.Want{Handlers: []runtime.Handler{nvidia}}
	devices = runtime.Want{CDI: true}
	all     = runtime.Want{CDI: true, CDIDirs: []string{"/var/run/cdi"}, Handlers: []runtime.Handler{nvidia}, Default: "nvidia"}
)

func plan(t *testing.T, text, version string, want runtime.Want) (string, []string) {
	t.Helper()
	p, err := Plan(texts{config: text}, runtime.Place{Kind: runtime.Docker, Config: config, Version: version}, want)
	require.NoError(t, err)
	require.Len(t, p.Items, 1)
	var edits []string
	for _, e := range p.Edits {
		edits = append(edits, strings.TrimPrefix(e.String(), config+": "))
	}
	return string(p.Items[0].File.Data), edits
}

var update = flag.Bool("update", false, "write the golden files")

// Each file of testdata is a daemon.json, then "-- want --" and the result with all
// abilities wanted, for a Docker that has CDI behind its flag. A line with only $
// marks a file that ends without a line break.
func TestPlanChangesOnlyWantedKeys(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			before, want, ok := strings.Cut(string(data), "-- want --\n")
			require.True(t, ok)
			before, want = strings.TrimSuffix(before, "$\n"), strings.TrimSuffix(want, "$\n")
			got, edits := plan(t, before, "27.5.1", all)
			if *update {
				end := map[bool]string{false: "$\n"}[strings.HasSuffix(got, "\n")]
				head, _, _ := strings.Cut(string(data), "-- want --\n")
				require.NoError(t, os.WriteFile(file, []byte(head+"-- want --\n"+got+end), 0o644))
				want = got
			}
			require.Equal(t, want, got)
			require.NotEmpty(t, edits)
			again, edits := plan(t, got, "27.5.1", all)
			require.Equal(t, got, again)
			require.Empty(t, edits)
		})
	}
}

func TestLineEndsAndByteOrderMarkAreKept(t *testing.T) {
	got, _ := plan(t, "\xef\xbb\xbf{\r\n\t\"debug\": true\r\n}\r\n", "28.0.4", devices)
	require.Equal(t, "\xef\xbb\xbf{\r\n\t\"debug\": true,\r\n\t\"features\": {\r\n\t\t\"cdi\": true\r\n\t}\r\n}\r\n", got)
	got, _ = plan(t, "\xef\xbb\xbf\n", "28.0.4", devices)
	require.Equal(t, "\xef\xbb\xbf{\n  \"features\": {\n    \"cdi\": true\n  }\n}\n", got)
}

func TestCDIByVersion(t *testing.T) {
	opt := []string{"features.cdi = true (not set until now)"}
	for version, want := range map[string][]string{
		"25.0.0": opt, "27.5.1+dfsg4": opt, "v28.1.1": opt, "28.2.0": nil, "28.2.0-rc.1": nil, "29.4.0": nil,
		"": opt, "dev": opt, "28": opt, "2.0.0-beta.24": opt, "library-import": opt,
	} {
		_, edits := plan(t, "{}", version, devices)
		require.Equal(t, want, edits, version)
	}
	for _, version := range []string{"20.10.24+dfsg1", "24.0.9", "17.03.0-ce", "1.13.1"} {
		require.ErrorContains(t, refusal(t, "{}", version, devices), "Docker "+version+" has no CDI")
	}
	_, edits := plan(t, `{"features": {"cdi": false}}`, "29.4.0", devices)
	require.Equal(t, []string{"features.cdi = true (until now false)"}, edits)
}

func TestDirectoriesAreAddedToExistingOnes(t *testing.T) {
	want := func(dirs ...string) runtime.Want { return runtime.Want{CDI: true, CDIDirs: dirs} }
	for _, c := range []struct {
		before, after string
		want          runtime.Want
	}{
		{`{}`, `{}`, want("/run/cdi", "/etc/cdi/")},
		{`{"cdi-spec-dirs": ["/run/cdi"]}`, `{"cdi-spec-dirs": ["/run/cdi"]}`, want("/var/run/cdi")},
		{`{"cdi-spec-dirs": ["/opt/cdi"]}`, `{"cdi-spec-dirs": ["/opt/cdi", "/var/run/cdi", "/x"]}`, want("/var/run/cdi", "/x", "/x/")},
		{"{\"cdi-spec-dirs\": [\n    \"/opt/cdi\"\n]}", "{\"cdi-spec-dirs\": [\n    \"/opt/cdi\",\n    \"/x\"\n]}", want("/x")},
		{`{"cdi-spec-dirs": []}`, `{"cdi-spec-dirs": ["/etc/cdi", "/var/run/cdi"]}`, want()},
		{`{"cdi-spec-dirs": [""]}`, `{"cdi-spec-dirs": ["/etc/cdi", "/var/run/cdi", "/x"]}`, want("/x")},
		{`{"debug": true}`, `{"debug": true, "cdi-spec-dirs": ["/etc/cdi", "/var/run/cdi", "/x"]}`, want("/x")},
	} {
		got, edits := plan(t, c.before, "28.2.0", c.want)
		require.Equal(t, c.after, got)
		require.Equal(t, c.before != c.after, len(edits) == 1, "%v", edits)
	}
	require.ErrorContains(t, refusal(t, "{}", "", want("/x")), "this one's version is not known")
}

func refusal(t *testing.T, text, version string, want runtime.Want) *runtime.Refusal {
	t.Helper()
	p, err := Plan(texts{config: text}, runtime.Place{Config: config, Version: version}, want)
	var r *runtime.Refusal
	require.ErrorAs(t, err, &r)
	require.Empty(t, p)
	return r
}

func TestUnreadableOrBreakingConfigurationsAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"{\n  \"runtimes\": []\n}":                         ":2:15: runtimes: this is a list and has to be an object",
		`{"features": {"cdi": "true"}}`:                    `:1:22: features.cdi: this is a string and has to be true or false`,
		`{"runtimes": {"nvidia": "/x"}}`:                   ":1:25: runtimes.nvidia: this is a string",
		`{"runtimes": {"nvidia": {"path": 1}}}`:            ":1:34: runtimes.nvidia.path: this is a number and has to be a string",
		`{"runtimes": {"nvidia": {"runtimeType": "a.b"}}}`: ":1:26: runtimes.nvidia: this runtime is a containerd shim by its runtimeType",
		`{"default-runtime": true}`:                        ":1:21: default-runtime: this is true and has to be a string",
		`{"cdi-spec-dirs": "/etc/cdi"}`:                    ":1:19: cdi-spec-dirs: this is a string and has to be a list",
		`{"cdi-spec-dirs": ["/etc/cdi", 1]}`:               ":1:32: cdi-spec-dirs: this is a number and has to be a directory",
		`{"Runtimes": {}}`:                                 ":1:2: Runtimes: dockerd does not know this key in these letters; write it as runtimes",
		"{\n\t// GPUs\n}":                                  ":2:2: dockerd's JSON has no comments",
		"{\n\t\"a\": 1, # b\n}":                            ":2:10: dockerd's JSON has no comments",
		"{\"é\": 1,\n \"b\": 2,\n}":                        ":3:1: dockerd's JSON has no comma after the last element",
		`{"hosts": ["a",]}`:                                ":1:16: dockerd's JSON has no comma after the last element",
		"{\n \"a\": 1":                                     ":2:8: unexpected end of JSON input",
		"{} {}":                                            ":1:4: invalid character '{' after top-level value",
		"[]":                                               ":1:1: this is a list and has to be an object",
		"{\"a\": \"\xff\"}":                                ":1:8: this is not UTF-8",
		"\xff\xfe{\x00}":                                   "it is UTF-16 with half a character",
		strings.Repeat("[", 1<<19):                         ":1:10001: invalid character '[' exceeded max depth",
	} {
		require.ErrorContains(t, refusal(t, text, "27.0.1", all), config+map[bool]string{true: "", false: ": "}[want[0] == ':']+want, text)
	}
	require.ErrorContains(t, refusal(t, `{}`, "", runtime.Want{Default: "nvidia"}), "nvidia cannot be the default: it is not among the runtimes")
	require.ErrorContains(t, refusal(t, `{}`, "", runtime.Want{Handlers: []runtime.Handler{{Name: "runc", Program: "/x"}}}), "Docker's own runtime")
	require.ErrorContains(t, refusal(t, `{}`, "", runtime.Want{Handlers: []runtime.Handler{{Name: "nvidia", Program: "x"}}}), "absolute path")
}

// dockerd starts with null for what is not set, with keys that occur twice, and with UTF-16.
func TestWhateverDockerdStartsWithIsAccepted(t *testing.T) {
	const program = `"/usr/local/nvidia/gpuready/gpu-oci-runtime"`
	for _, c := range []struct {
		name, before, after string
		want                runtime.Want
	}{
		{"null", "null\n", "{\n  \"features\": {\n    \"cdi\": true\n  }\n}\n", devices},
		{"no runtimes", `{"runtimes": null}`, `{"runtimes": {"nvidia": {"path": ` + program + `}}}`, handler},
		{"no runtimes, in lines", "{\n  \"runtimes\": null,\n  \"debug\": true\n}\n",
			"{\n  \"runtimes\": {\n    \"nvidia\": {\n      \"path\": " + program + "\n    }\n  },\n  \"debug\": true\n}\n", handler},
		{"no entry", `{"runtimes": {"nvidia": null}}`, `{"runtimes": {"nvidia": {"path": ` + program + `}}}`, handler},
		{"no path", `{"runtimes": {"nvidia": {"path": null, "runtimeType": "", "options": null}}}`,
			`{"runtimes": {"nvidia": {"path": ` + program + `, "runtimeType": "", "options": null}}}`, handler},
		{"no features", `{"features": null}`, `{"features": {"cdi": true}}`, devices},
		{"no value of a feature", `{"features": {"cdi": null}}`, `{"features": {"cdi": true}}`, devices},
		{"no default", `{"default-runtime": null}`, `{"default-runtime": "runc"}`, runtime.Want{Default: "runc"}},
		{"no directories", `{"cdi-spec-dirs": null, "features": {"cdi": true}}`,
			`{"cdi-spec-dirs": ["/etc/cdi", "/var/run/cdi", "/x"], "features": {"cdi": true}}`, runtime.Want{CDI: true, CDIDirs: []string{"/x"}}},
		{"another key twice", `{"debug": true, "x": [{"a": 1, "a": 2}], "debug": false}`,
			`{"debug": true, "x": [{"a": 1, "a": 2}], "debug": false, "features": {"cdi": true}}`, devices},
		{"the last default applies", `{"default-runtime": "runc", "default-runtime": "io.x.v1"}`,
			`{"default-runtime": "runc", "default-runtime": "runc"}`, runtime.Want{Default: "runc"}},
		{"objects are merged", `{"features": {"cdi": false}, "features": {"buildkit": true}}`, `{"features": {"cdi": true}, "features": {"buildkit": true}}`, devices},
		{"a new member goes into the last", `{"runtimes": {"a": {"path": "/a"}}, "runt\u0069mes": {}}`,
			`{"runtimes": {"a": {"path": "/a"}}, "runt\u0069mes": {"nvidia": {"path": ` + program + `}}}`, handler},
		{"null forgets", `{"features": {"cdi": true}, "features": null}`, `{"features": {"cdi": true}, "features": {"cdi": true}}`, devices},
		{"the last path applies", `{"runtimes": {"nvidia": {"path": "/a", "Path": "/b"}}}`, `{"runtimes": {"nvidia": {"path": "/a", "Path": ` + program + `}}}`, handler},
		{"UTF-16", "\xff\xfe{\x00}\x00", utf16Text("{\n  \"features\": {\n    \"cdi\": true\n  }\n}"), devices},
	} {
		got, edits := plan(t, c.before, "27.5.1", c.want)
		require.Equal(t, c.after, got, c.name)
		require.Len(t, edits, 1, c.name)
		again, edits := plan(t, got, "27.5.1", c.want)
		require.Equal(t, got, again, c.name)
		require.Empty(t, edits, c.name)
	}
	got, edits := plan(t, "null", "28.2.0", devices)
	require.Equal(t, "null", got)
	require.Empty(t, edits)
}

// utf16Text returns ASCII as little-endian UTF-16 with its mark.
func utf16Text(s string) string {
	data := "\xff\xfe"
	for _, r := range s {
		data += string(r) + "\x00"
	}
	return data
}

func TestOtherFieldsOfOurHandlerAreKept(t *testing.T) {
	got, edits := plan(t, `{"runtimes":{"my.rt":{"Path":"/old","runtimeArgs":["-d"]}}}`, "", runtime.Want{Handlers: []runtime.Handler{{Name: "my.rt", Program: "/new"}}, Default: "io.containerd.runsc.v1"})
	require.Equal(t, `{"runtimes":{"my.rt":{"Path":"/new","runtimeArgs":["-d"]}},"default-runtime":"io.containerd.runsc.v1"}`, got)
	require.Equal(t, []string{`runtimes."my.rt".Path = "/new" (until now "/old")`, `default-runtime = "io.containerd.runsc.v1" (not set until now)`}, edits)
}

func TestNoFileIsCreatedWithoutEdits(t *testing.T) {
	p, err := Plan(texts{}, runtime.Place{Config: config, Version: "28.3.0"}, devices)
	require.NoError(t, err)
	require.Empty(t, p)
	p, err = Plan(texts{}, runtime.Place{Config: config, Version: "28.3.0"}, handler)
	require.NoError(t, err)
	require.Equal(t, "{\n  \"runtimes\": {\n    \"nvidia\": {\n      \"path\": \"/usr/local/nvidia/gpuready/gpu-oci-runtime\"\n    }\n  }\n}\n", string(p.Items[0].File.Data))
}

// The permissions matter because the file can hold a proxy's password.
func TestLinksAndPermissionsAreKept(t *testing.T) {
	for name, link := range map[string]string{"file": "", "link": "real.json", "absolute link": "/real.json", "dangling link": "new.json"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			root, err := host.Open(dir)
			require.NoError(t, err)
			defer root.Close()
			written, mode := "daemon.json", fs.FileMode(0o600)
			if link != "" {
				written = path.Base(link)
				require.NoError(t, os.Symlink(link, filepath.Join(dir, "daemon.json")))
			}
			if link == "new.json" {
				mode = 0o644
			} else {
				require.NoError(t, os.WriteFile(filepath.Join(dir, written), []byte("{}"), mode))
			}
			p, err := Plan(root, runtime.Place{Config: "/daemon.json"}, handler)
			require.NoError(t, err)
			changes, err := apply.Plan(root, p.Items)
			require.NoError(t, err)
			_, err = apply.Write(root, changes)
			require.NoError(t, err)
			info, err := os.Lstat(filepath.Join(dir, written))
			require.NoError(t, err)
			require.Equal(t, mode, info.Mode())
			if link != "" {
				target, err := os.Readlink(filepath.Join(dir, "daemon.json"))
				require.NoError(t, err)
				require.Equal(t, link, target)
			}
			p, err = Plan(root, runtime.Place{Config: "/daemon.json"}, handler)
			require.NoError(t, err)
			require.Empty(t, p.Edits)
		})
	}
}

func TestDirectoryInPlaceOfTheFileIsAnError(t *testing.T) {
	root, err := host.Open(t.TempDir())
	require.NoError(t, err)
	defer root.Close()
	_, err = Plan(root, runtime.Place{Config: "/"}, handler)
	require.ErrorContains(t, err, "the configuration of Docker cannot be read: open /: not a regular file")
}

func TestOnlyRuntimesAreReloadable(t *testing.T) {
	edits := func(want runtime.Want) []runtime.Edit {
		p, err := Plan(texts{}, runtime.Place{Config: config, Version: "27.1.0"}, want)
		require.NoError(t, err)
		return p.Edits
	}
	require.True(t, Reloadable(nil))
	require.True(t, Reloadable(edits(runtime.Want{Handlers: []runtime.Handler{nvidia}, Default: "nvidia"})))
	require.False(t, Reloadable(edits(devices)))
	require.False(t, Reloadable(edits(all)))
	require.False(t, Reloadable(edits(runtime.Want{CDI: true, CDIDirs: []string{"/x"}})[1:]))
	require.False(t, Reloadable([]runtime.Edit{{Key: "runtimes.nvidia.path", Before: `"/x"`}}), "a reload forgets no runtime")
}
