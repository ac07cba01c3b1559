package main

import (
	goflag "flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/toolkit/hook/joined"
)

// Paths in an image: those that hooks use, and directories and links that may lead to them.
var (
	looked = []string{"", "/etc", "/etc/ld.so.cache", "/etc/ld.so.conf.d", "/etc/ld.so.conf.d/00-gpuready.conf", muslPath,
		"/etc/nvidia", profilePath, "/usr", libs, libs + "/libcuda.so.1", "/usr/local/cuda", "/usr/local/cuda/compat", "/lib64", "/dev", "/dev/dri", "/dev/dri/by-path", "/proc"}
	leading = []string{"/d/l", "/l", "/a/b/c", "/v/l"} // links, as a rule
	targets = append([]string{"/", "/", "/d", "/a", "/v", "/own", "..", "../..", "l", "/proc/self/root", "/v/flip0", "/v/flip0", "/w/etc"}, looked[1:]...)
)

// aspects counts the events in all sequences.
type aspects struct{ all, reached, refused, written, flipped atomic.Int64 }

// check creates one container and fails if its hooks changed anything outside of it.
func (a *aspects) check(t *rapid.T, dir, hook string) {
	p, err := newPod(dir, hook)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.overlay, p.blind = rapid.Bool().Draw(t, "overlay"), rapid.IntRange(0, 3).Draw(t, "old kernel") == 0
	target := rapid.SampledFrom(targets)
	spot := rapid.Custom(func(t *rapid.T) string {
		above := rapid.SampledFrom(append([]string{"", "", "", "/d", "/a/b", "/v", "/w", "/own"}, leading...)).Draw(t, "above")
		return path.Join("/", above, rapid.SampledFrom(looked).Draw(t, "below"))
	})

	// There are volumes of three kinds. Sources are these, parts of them, and files that the
	// container already has.
	var sources []string
	for i := range rapid.IntRange(1, 3).Draw(t, "volumes") {
		v, err := p.volume(fmt.Sprintf("v%d", i), rapid.Bool().Draw(t, "memory"))
		if err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "links in a volume") {
			at := rapid.SampledFrom([]string{"/etc/ld.so.conf.d", "/usr", "/etc", "/own", "/x", "/dev"}).Draw(t, "at")
			if err := links(v, map[string]string{at: target.Draw(t, "target")}); err != nil {
				t.Fatal(err)
			}
		}
		empty := v + "/empty"
		if err := os.MkdirAll(empty, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{v, v, v + "/etc", v + "/usr", v + "/dev", v + "/ld.so.cache", empty} {
			if real, err := filepath.EvalSymlinks(s); err == nil && strings.HasPrefix(real, v) { // as a kubelet ensures
				sources = append(sources, real)
			}
		}
	}
	in := map[string]string{}
	for _, at := range leading {
		if rapid.IntRange(0, 3).Draw(t, at) > 0 {
			in[at] = target.Draw(t, "leads to")
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "other links") {
		if at := spot.Draw(t, "link"); at != "/" && at != "/proc" && at != "/dev" {
			in[at] = target.Draw(t, "target")
		}
	}
	_ = links(p.image, in) // some conflict, or would lead this test out of it

	for range rapid.IntRange(1, 6).Draw(t, "mounts") {
		m := oci.Mount{Destination: spot.Draw(t, "destination"), Type: "bind", Source: rapid.SampledFrom(sources).Draw(t, "source")}
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			m.Type, m.Source = "tmpfs", "tmpfs"
		case 1:
			m.Options = []string{"bind", "ro"}
		case 2:
			m.Options = []string{"rbind", "rshared"}
		case 3:
			m.Options, m.Source = []string{"rbind"}, p.image+rapid.SampledFrom([]string{"", "/etc", "/usr"}).Draw(t, "part of the image")
			if p.overlay {
				m.Source = "/proc/self/root" + p.dir + "/lower" // the path of the image then
			}
		default:
			m.Options = []string{"rbind", rapid.SampledFrom([]string{"rprivate", "rslave"}).Draw(t, "propagation")}
		}
		switch rapid.IntRange(0, 5).Draw(t, "usual") {
		case 0:
			m.Destination = "/v"
		case 1:
			m.Destination = "/w"
		}
		at := len(p.mounts)
		if rapid.IntRange(0, 3).Draw(t, "earlier") == 0 {
			at = rapid.IntRange(0, at).Draw(t, "place")
		}
		p.mounts = append(p.mounts[:at:at], append([]oci.Mount{m}, p.mounts[at:]...)...)
	}
	hooks := append(all(), []string{"create-symlinks", "--link", "x::" + spot.Draw(t, "a link's place") + "/x/y"},
		[]string{"chmod", "--mode", "711", "--path", spot.Draw(t, "a path")})
	p.hook = append([]string{hook}, joined.Args(hooks...)...)
	if rapid.IntRange(0, 3).Draw(t, "flip") == 0 {
		p.runs = 4
		for i := range rapid.IntRange(1, 2).Draw(t, "flips") {
			from, to := "/flip"+strconv.Itoa(i), rapid.SampledFrom([]string{"/flop", "/etc", "/l", "/own", "/usr"}).Draw(t, "flips with")
			if err := os.Symlink(target.Draw(t, "flipped"), p.outside+"/v0"+from); err != nil {
				t.Fatal(err)
			}
			_ = os.Symlink(target.Draw(t, "flips to"), p.outside+"/v0/flop")
			p.flip = append(p.flip, [2]string{"/v0" + from, "/v0" + to})
		}
	}

	o, message, err := p.run()
	if err != nil {
		t.Fatalf("%v: %s", err, message)
	}
	a.all.Add(1)
	if o == nil {
		return // the runtime refused it
	}
	a.reached.Add(1)
	count(&a.refused, len(o.message) > 0)
	count(&a.flipped, o.flips > 0)
	cache, err := p.cache()
	count(&a.written, err == nil && len(cache.Entries) > 1)
	if len(o.changed) > 0 {
		t.Fatalf("changed outside of the container:\n%q\nmounts: %+v\nlinks: %q\nthe hook message: %s", o.changed, p.mounts, in, o.message)
	}
}

func count(n *atomic.Int64, is bool) {
	if is {
		n.Add(1)
	}
}

// For any mounts and links, even if links are exchanged meanwhile, files outside of the
// container stay unchanged, byte for byte. GPUREADY_LONG=1 tries 10,000 sequences.
func TestNoSequenceOfMountsLinksAndFlipsReachesTheHost(t *testing.T) {
	hook, sequences, workers := built.Path(t, "gpu-cdi-hook"), 300, 2
	if long {
		sequences = 10_000
	}
	if n, err := strconv.Atoi(os.Getenv("GPUREADY_SEQUENCES")); err == nil {
		sequences = n
	}
	checks := goflag.Lookup("rapid.checks")
	before := checks.Value.String()
	require.NoError(t, checks.Value.Set(strconv.Itoa(sequences/workers)))
	defer func() { require.NoError(t, checks.Value.Set(before)) }()
	var a aspects
	t.Run("batch", func(t *testing.T) {
		for i := range workers {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				dir := scratch(t)
				rapid.Check(t, func(t *rapid.T) { a.check(t, dir, hook) })
			})
		}
	})
	t.Logf("%d sequences: %d came to the hooks, %d had something refused, %d had the cache written, %d had links flipped meanwhile",
		a.all.Load(), a.reached.Load(), a.refused.Load(), a.written.Load(), a.flipped.Load())
	for name, n := range map[string]int64{"came to the hooks": a.reached.Load(), "refused": a.refused.Load(), "written": a.written.Load(), "flipped": a.flipped.Load()} {
		require.Greater(t, n, a.all.Load()/20, name)
	}
}
