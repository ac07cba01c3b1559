package main

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deployments/images/build/rootfs"
)

// samples are the CUDA jobs; the validator's image has them, too.
var samples = []string{
	"/usr/bin/vectoradd",
	"/usr/bin/reduction",
	"/usr/bin/gemm",
	"/usr/bin/bandwidth",
	"/usr/bin/memtest",
	"/usr/bin/compute",
}

// wanted are the images, with the program and user of each.
var wanted = map[string]struct {
	user  string
	files []string
}{
	"cuda-samples":  {"65532:65532", samples},
	"device-plugin": {"0:0", []string{"/usr/bin/gpu-device-plugin"}},
	"dra-driver":    {"0:0", []string{"/usr/bin/gpu-dra-driver"}},
	"driver":        {"0:0", []string{"/usr/bin/gpu-driver"}},
	"driver-simulator": {"0:0", []string{"/usr/bin/gpusim", "/usr/lib/gpusim/libnvidia-ml.so", "/usr/lib/gpusim/libcuda.so",
		"/usr/lib/gpusim/nvidia-smi", "/usr/lib/gpusim/nvidia-cuda-mps-control"}},
	"operator":  {"65532:65532", []string{"/usr/bin/gpu-operator"}},
	"toolkit":   {"0:0", []string{"/usr/bin/gpu-toolkit", "/usr/bin/gpu-cdi-hook", "/usr/bin/gpu-oci-runtime"}},
	"validator": {"0:0", append([]string{"/usr/bin/gpu-validator"}, samples...)},
}

func containerfile(t testing.TB, name string) (string, recipe) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", name, "Containerfile"))
	require.NoError(t, err)
	r, err := parseRecipe(string(text)) // which refuses RUN
	require.NoError(t, err, name)
	return string(text), r
}

func TestThereIsAnImageForEachDaemonSet(t *testing.T) {
	all := slices.Sorted(maps.Keys(wanted))
	found, err := recipes(&options{recipes: ".."})
	require.NoError(t, err)
	require.Equal(t, all, found)

	fragment, err := os.ReadFile("../images.mk")
	require.NoError(t, err)
	m := regexp.MustCompile(`(?m)^IMAGE_NAMES *:= (.*)$`).FindSubmatch(fragment)
	require.NotNil(t, m)
	require.Equal(t, all, strings.Fields(string(m[1])))

	_, err = recipes(&options{recipes: "..", names: []string{"exporter"}})
	require.ErrorContains(t, err, "exporter: there is no such image; the images are cuda-samples, device-plugin,")
}

func TestContainerfilesDescribeTheImages(t *testing.T) {
	for name, want := range wanted {
		t.Run(name, func(t *testing.T) {
			_, r := containerfile(t, name)
			require.Regexp(t, `@sha256:[0-9a-f]{64}$`, r.Base, "the default base is pinned")
			require.Equal(t, want.user, r.User)
			require.Equal(t, want.files[:1], r.Entrypoint)
			var files []string
			for _, f := range r.Files {
				if f.Source == sbomSource(name) {
					require.Equal(t, rootfs.SBOMPath(name), f.Path)
					continue
				}
				files = append(files, f.Path)
				require.Equal(t, fs.FileMode(0o755), f.Mode)
			}
			require.Equal(t, want.files, files)
			for label, value := range map[string]string{
				"title": "gpuready ", "description": "", "licenses": "Apache-2.0", "source": "https://github.com/gpuready/gpuready",
				"version": "${VERSION}", "revision": "${REVISION}", "base.name": "${BASE}",
			} {
				require.Contains(t, r.Labels["org.opencontainers.image."+label], value)
				require.NotEmpty(t, r.Labels["org.opencontainers.image."+label], label)
			}
			for _, arg := range []string{"BASE", "VERSION", "REVISION"} {
				require.Contains(t, r.Args, arg)
			}
		})
	}
}

func someInputs(t testing.TB, name string) inputs {
	t.Helper()
	in := inputs{
		Name: name, Version: "v1.2.3", Revision: "0123abc", Repository: "docker.io/gpuready", Arch: "amd64",
		Base: baseImage{Name: "base:1", Image: rootfs.Image{
			ID:   "sha256:1",
			Tree: rootfs.Tree{"/usr": {Mode: fs.ModeDir | 0o755}, "/usr/bin": {Mode: fs.ModeDir | 0o755}},
		}},
		Files: map[string][]byte{}, At: time.Unix(0, 0), Tool: "this",
	}
	in.Containerfile, in.Recipe = containerfile(t, name)
	for _, f := range in.Recipe.Files {
		in.Files[f.Source] = []byte("content of " + f.Source)
	}
	return in
}

func TestPlanHasEverythingInTheImage(t *testing.T) {
	p, err := makePlan(someInputs(t, "toolkit"))
	require.NoError(t, err)
	require.Equal(t, "docker.io/gpuready/toolkit:v1.2.3", p.Reference)
	require.Equal(t, map[string]string{"BASE": "base:1", "VERSION": "v1.2.3", "REVISION": "0123abc"}, p.Args)
	require.Equal(t, []string{
		"/usr", "/usr/bin", "/usr/bin/gpu-cdi-hook", "/usr/bin/gpu-oci-runtime", "/usr/bin/gpu-toolkit", "/usr/share", "/usr/share/sbom", "/usr/share/sbom/toolkit.spdx.json",
	}, p.Tree.Paths())
	require.Equal(t, p.SBOM, p.Files["images/toolkit.spdx.json"])
	require.Equal(t, "content of gpu-toolkit", string(p.Files["gpu-toolkit"]))
	require.Contains(t, string(p.SBOM), p.Tree["/usr/bin/gpu-toolkit"].SHA256)
}

func TestImageIsRebuiltOnlyWhenItChanged(t *testing.T) {
	one, err := makePlan(someInputs(t, "toolkit"))
	require.NoError(t, err)
	for name, change := range map[string]func(*inputs){
		"version":       func(in *inputs) { in.Version = "v0.1.1" },
		"commit":        func(in *inputs) { in.Revision = "4567def" },
		"repository":    func(in *inputs) { in.Repository = "registry.example/x" },
		"architecture":  func(in *inputs) { in.Arch = "arm64" },
		"a program":     func(in *inputs) { in.Files["gpu-toolkit"] = []byte("another") },
		"Containerfile": func(in *inputs) { in.Containerfile += "# more\n" },
		"base":          func(in *inputs) { in.Base.Image.ID = "sha256:2" },
		"builder":       func(in *inputs) { in.Tool = "another" },
		"time":          func(in *inputs) { in.At = time.Unix(1, 0) },
		"nothing":       func(*inputs) {},
		"another image": func(in *inputs) { in.Files["gpusim"] = []byte("another") },
	} {
		t.Run(name, func(t *testing.T) {
			in := someInputs(t, "toolkit")
			change(&in)
			two, err := makePlan(in)
			require.NoError(t, err)
			require.Equal(t, name == "nothing" || name == "another image", one.Key == two.Key)
		})
	}
}

func TestPlanReportsAllErrors(t *testing.T) {
	in := someInputs(t, "toolkit")
	in.Base.Image.Config.Architecture = "arm64"
	in.Base.Image.Tree["/usr/bin/sh"] = rootfs.File{Mode: 0o755}
	in.Recipe.Entrypoint = []string{"/usr/bin/other"}
	_, err := makePlan(in)
	require.ErrorContains(t, err, "the base base:1 is for arm64; name one for amd64")
	require.ErrorContains(t, err, "/usr/bin/sh is a shell; use a base without one")
	require.ErrorContains(t, err, "ENTRYPOINT /usr/bin/other is not a program that it copies")

	in = someInputs(t, "toolkit")
	in.Recipe.Files = in.Recipe.Files[:2]
	_, err = makePlan(in)
	require.ErrorContains(t, err, "does not copy images/toolkit.spdx.json to /usr/share/sbom/toolkit.spdx.json; add that line")
}

func TestTheOperatorsImageHasCertificateAuthorities(t *testing.T) {
	in := someInputs(t, "operator")
	_, err := makePlan(in)
	require.ErrorContains(t, err, "the base base:1 has no /etc/ssl/certs/ca-certificates.crt")
	in.Base.Image.Tree = in.Base.Image.Tree.With(map[string]rootfs.File{rootfs.Bundle: {Mode: 0o644}})
	p, err := makePlan(in)
	require.NoError(t, err)
	require.Contains(t, p.Tree, rootfs.Bundle)
}

func TestBuiltImageIsComparedWithThePlan(t *testing.T) {
	in := someInputs(t, "toolkit")
	p, err := makePlan(in)
	require.NoError(t, err)
	built := rootfs.Image{Names: []string{p.Reference}, Tree: p.Tree}
	built.Config.Config.User, built.Config.Config.Entrypoint = "0:0", []string{"/usr/bin/gpu-toolkit"}
	built.Config.Config.Labels = maps.Clone(in.Recipe.Labels)
	require.NoError(t, p.compare(built, in.Recipe))

	built.Tree = p.Tree.With(map[string]rootfs.File{"/usr/bin/more": {Mode: 0o755}})
	built.Config.Config.User = "1:1"
	built.Names = nil
	delete(built.Config.Config.Labels, "org.opencontainers.image.title")
	err = p.compare(built, in.Recipe)
	for _, want := range []string{"/usr/bin/more is not expected", "as 1:1", "org.opencontainers.image.title is empty", "it is named []"} {
		require.ErrorContains(t, err, want)
	}
}

func TestMissingProgramsHintAtMake(t *testing.T) {
	o, err := parse([]string{"--bin", t.TempDir(), "--recipes", "..", "toolkit"})
	require.NoError(t, err)
	j := &job{options: o}
	_, err = j.readInputs(t.Context(), "toolkit", nil)
	require.ErrorContains(t, err, "gpu-toolkit is missing; run make build")
}

func TestOptions(t *testing.T) {
	t.Setenv("VERSION", "v9.9.9")
	t.Setenv("SOURCE_DATE_EPOCH", "7")
	o, err := parse([]string{"--bin", "x", "validator", "toolkit", "toolkit"})
	require.NoError(t, err)
	require.Equal(t, []string{"toolkit", "validator"}, o.names)
	require.Equal(t, "x/images", o.out)
	require.Equal(t, "v9.9.9", o.version)
	require.EqualValues(t, 7, o.at().Unix())
	require.Contains(t, o.usage(), "Exit codes")

	for args, want := range map[string]string{
		"--output=xml":       "it is table, json or name",
		"--arch=riscv64":     "it is amd64 or arm64",
		"--version=a/b":      "as in v1.2.3",
		"--repository=plain": "as in docker.io/gpuready",
		"--epoch=-1":         "nothing was made before 1970",
		"--nothing":          "unknown flag",
	} {
		_, err := parse([]string{args})
		require.ErrorContains(t, err, want)
	}
}

func TestReport(t *testing.T) {
	results := []result{
		{Name: "toolkit", Reference: "docker.io/gpuready/toolkit:v1.2.3", Arch: "amd64", ID: "sha256:0123456789abcdef", Archive: "bin/images/toolkit.tar", Bytes: 46 * megabyte, BaseBytes: 4 * megabyte, Goal: 45 * megabyte},
		{Name: "driver-simulator", Reference: "docker.io/gpuready/driver-simulator:v1.2.3", Arch: "amd64", ID: "sha256:fedcba9876543210", Archive: "bin/images/driver-simulator.tar", Bytes: 11_540_000, BaseBytes: 4 * megabyte},
	}
	var out bytes.Buffer
	require.NoError(t, report(&out, results, "table"))
	require.Equal(t, ""+
		"IMAGE                                        ARCH    SIZE      GOAL                     ID                    ARCHIVE\n"+
		"docker.io/gpuready/toolkit:v1.2.3            amd64   46.0 MB   ≤ 45.0 MB: 1.0 MB OVER   sha256:0123456789ab   bin/images/toolkit.tar\n"+
		"docker.io/gpuready/driver-simulator:v1.2.3   amd64   11.5 MB   -                        sha256:fedcba987654   bin/images/driver-simulator.tar\n"+
		"Sizes are uncompressed; 4.0 MB of each are the base, which a node stores once.\n", out.String())
	out.Reset()
	require.NoError(t, report(&out, results[:1], "json"))
	require.Contains(t, out.String(), `"id": "sha256:0123456789abcdef"`)
}
