package apply

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
)

const (
	conf     = "/etc/containerd/config.toml"
	original = "# ours, by hand\nversion = 2\n"
	edited   = original + "[nvidia]\nruntime = \"gpu\"\n"
)

// machine returns a host with a runtime's configuration that is not owned by root.
func machine(t *testing.T) (string, *host.Root) {
	t.Helper()
	at, root := hostTree(t)
	require.NoError(t, os.MkdirAll(at+filepath.Dir(conf), 0o755))
	require.NoError(t, os.WriteFile(at+conf, []byte(original), 0o600))
	require.NoError(t, os.Chmod(at+conf, 0o640))
	if os.Getuid() == 0 {
		require.NoError(t, os.Chown(at+conf, 1234, 4321))
		if err := unix.Setxattr(at+conf, "user.note", []byte("kept"), 0); err != nil {
			require.ErrorIs(t, err, unix.ENOTSUP)
		}
	}
	return at, root
}

// describe describes all properties of a file that have to be restored.
func describe(t *testing.T, file string) string {
	t.Helper()
	info, err := os.Lstat(file)
	require.NoError(t, err)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	st, ok := info.Sys().(*syscall.Stat_t)
	require.True(t, ok)
	note := make([]byte, 100)
	n, _ := unix.Lgetxattr(file, "user.note", note)
	return strings.Join([]string{info.Mode().String(), string(rune('0' + st.Uid%10)), string(rune('0' + st.Gid%10)), string(note[:max(n, 0)]), string(data)}, "|")
}

func config(data string) []Item {
	return []Item{{Path: conf, Follow: true, File: &File{Data: []byte(data)}}}
}

func changesFor(t *testing.T, root *host.Root, items []Item) []Change {
	t.Helper()
	changes, err := Plan(root, items)
	require.NoError(t, err)
	return changes
}

func read(t *testing.T, root *host.Root) Manifest {
	t.Helper()
	m, err := storeOf(root, "boot").Manifest()
	require.NoError(t, err)
	return m
}

func TestOriginalIsRestoredByteForByte(t *testing.T) {
	at, root := machine(t)
	before, tree0 := describe(t, at+conf), tree(t, at)
	for _, data := range []string{edited, edited + "more\n", edited} {
		applyItems(t, root, "boot", config(data))
		require.Equal(t, strings.TrimSuffix(before, original)+data, describe(t, at+conf), "mode, owner and attributes are kept")
	}
	kept, err := os.ReadDir(at + dir + "/originals")
	require.NoError(t, err)
	require.Len(t, kept, 1, "only the first")
	require.Equal(t, originalPath(dir, hash([]byte(original))), dir+"/originals/"+kept[0].Name())
	require.Equal(t, []string{"[nvidia]", `runtime = "gpu"`}, read(t, root).entry(conf).Added)
	require.Empty(t, uninstall(t, root, "another boot"))
	require.Equal(t, before, describe(t, at+conf))
	require.Equal(t, tree0, tree(t, at))
}

func TestConfigurationBehindALinkIsEditedWhereItIs(t *testing.T) {
	at, root := machine(t)
	real := "/etc/containerd/real.toml"
	require.NoError(t, os.Rename(at+conf, at+real))
	require.NoError(t, os.Symlink("real.toml", at+conf))
	applyItems(t, root, "boot", config(edited))
	target, err := os.Readlink(at + conf)
	require.NoError(t, err)
	require.Equal(t, "real.toml", target)
	require.Contains(t, describe(t, at+real), edited)
	require.Empty(t, uninstall(t, root, "boot"))
	require.True(t, strings.HasSuffix(describe(t, at+real), "|"+original))
}

func TestRemovedFilesAndReplacedLinksAreRestored(t *testing.T) {
	at, root := machine(t)
	require.NoError(t, os.Symlink("there", at+"/etc/link"))
	before := describe(t, at+conf)
	applyItems(t, root, "boot", []Item{{Path: conf, Absent: true}, {Path: "/etc/link", Link: "elsewhere"}})
	_, err := os.Lstat(at + conf)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Empty(t, uninstall(t, root, "boot"))
	require.Equal(t, before, describe(t, at+conf))
	target, err := os.Readlink(at + "/etc/link")
	require.NoError(t, err)
	require.Equal(t, "there", target)
}

func TestRestoreOfAModeChange(t *testing.T) {
	at, root := machine(t)
	before := describe(t, at+conf)
	items := config(original)
	items[0].File.Mode = 0o600
	applyItems(t, root, "boot", items)
	require.NotEqual(t, before, describe(t, at+conf))
	require.Empty(t, uninstall(t, root, "boot"))
	require.Equal(t, before, describe(t, at+conf))
}

// Others gave a group access to the file after us; Restore keeps that.
func TestModeThatOthersChangedIsKept(t *testing.T) {
	at, root := machine(t)
	applyItems(t, root, "boot", config(edited))
	require.NoError(t, os.Chmod(at+conf, 0o604))
	require.Empty(t, uninstall(t, root, "boot"))
	require.True(t, strings.HasPrefix(describe(t, at+conf), "-rw----r--|"))
	require.True(t, strings.HasSuffix(describe(t, at+conf), "|"+original))
}

func TestRestoreNeverOverwritesWhatOthersChangedSince(t *testing.T) {
	at, root := machine(t)
	applyItems(t, root, "boot", append(config(edited), wanted()...))
	theirs := "# new\n" + strings.Replace(edited, "version = 2", "version = 3", 1)
	require.NoError(t, os.WriteFile(at+conf, []byte(theirs), 0o600))
	kept := originalPath(dir, hash([]byte(original)))
	for range 2 { // it reports so every time
		left := uninstall(t, root, "boot")
		require.Equal(t, []string{conf + ` was changed by others since; ours in it: ["[nvidia]" "runtime = \"gpu\""]; what it was before is kept in ` + kept + " (mode 0640): put it right by hand and run this again"}, left)
		require.Contains(t, describe(t, at+conf), theirs)
		require.Contains(t, describe(t, at+kept), original)
		_, err := os.Lstat(at + dir + "/" + hookName)
		require.ErrorIs(t, err, fs.ErrNotExist, "all else is gone")
	}
	require.NoError(t, os.WriteFile(at+conf, []byte(original), 0o600))
	require.Empty(t, uninstall(t, root, "boot"))
	_, err := os.Lstat(at + dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestVersionOfOthersBetweenOurChangesIsRestored(t *testing.T) {
	for name, without := range map[string]string{"as they left it": "", "without ours": "# theirs\n"} {
		t.Run(name, func(t *testing.T) {
			at, root := machine(t)
			applyItems(t, root, "boot", config(edited))
			theirs := "# theirs\n[nvidia]\n"
			require.NoError(t, os.WriteFile(at+conf, []byte(theirs), 0o600))
			items := config(theirs + "runtime = \"gpu\"\n")
			want := theirs
			if without != "" {
				items[0].File.Without, want = []byte(without), without
			}
			applyItems(t, root, "boot", items)
			first := originalPath(dir, hash([]byte(original)))
			for range 2 {
				left := uninstall(t, root, "boot")
				require.Len(t, left, 1)
				require.Contains(t, left[0], first)
				require.True(t, strings.HasSuffix(describe(t, at+conf), "|"+want))
				require.Contains(t, describe(t, at+first), original)
			}
			require.NoError(t, os.Remove(at+first))
			require.Empty(t, uninstall(t, root, "boot"))
			_, err := os.Lstat(at + dir)
			require.ErrorIs(t, err, fs.ErrNotExist)
		})
	}
}

func TestDamagedOriginalIsRefusedByName(t *testing.T) {
	at, root := machine(t)
	applyItems(t, root, "boot", append(wanted(), config(edited)...))
	kept := originalPath(dir, hash([]byte(original)))
	for _, spoil := range []func() error{
		func() error { return os.WriteFile(at+kept, []byte("spoilt"), 0o600) },
		func() error { return os.Remove(at + kept) },
	} {
		require.NoError(t, spoil())
		_, err := storeOf(root, "boot").Sweep() // it also removes an empty directory
		require.NoError(t, err)
		before := tree(t, at)
		_, err = storeOf(root, "boot").Restore(RestoreOptions{})
		require.ErrorContains(t, err, kept)
		require.ErrorContains(t, err, conf)
		require.Equal(t, before, tree(t, at), "nothing else is done")
		require.Contains(t, describe(t, at+conf), edited)
	}
}

func TestRestoreOfSelectedPaths(t *testing.T) {
	at, root := machine(t)
	applyItems(t, root, "boot", append(config(edited), wanted()...))
	r, err := storeOf(root, "boot").Restore(RestoreOptions{Only: func(p string) bool { return p == conf }})
	require.NoError(t, err)
	require.Empty(t, r.Left)
	require.Len(t, r.Changes, 1)
	require.True(t, strings.HasSuffix(describe(t, at+conf), "|"+original))
	require.Len(t, read(t, root).Entries, len(wanted()))
	require.FileExists(t, at+dir+"/"+hookName)
	require.Empty(t, uninstall(t, root, "boot"))
}

func TestManifestsOfVersionOneAreRead(t *testing.T) {
	at, root := machine(t)
	require.NoError(t, os.MkdirAll(at+dir, 0o755))
	require.NoError(t, os.WriteFile(at+"/etc/ours", []byte("x"), 0o644))
	require.NoError(t, os.WriteFile(at+manifestPath(dir), []byte(`{"version":1,"bootID":"boot","entries":[{"path":"/etc/ours","sha256":"`+hash([]byte("x"))+`"}],"dirs":["`+dir+`"]}`), 0o644))
	applyItems(t, root, "boot", config(edited))
	require.Empty(t, uninstall(t, root, "boot"))
	for _, gone := range []string{"/etc/ours", dir} {
		_, err := os.Lstat(at + gone)
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
}

func TestHostileManifestsAreRefused(t *testing.T) {
	sum := strings.Repeat("a", 64)
	for name, text := range map[string]string{
		"empty":               ``,
		"cut short":           `{"version":2,"entries":[{"pa`,
		"two":                 `{"version":2}{}`,
		"newer":               `{"version":3,"colour":"blue"}`,
		"unknown field":       `{"version":2,"colour":"blue"}`,
		"relative":            `{"version":2,"entries":[{"path":"etc/x","absent":true}]}`,
		"outside":             `{"version":2,"entries":[{"path":"/a/../../etc/x","absent":true}]}`,
		"root":                `{"version":2,"entries":[{"path":"/","absent":true}]}`,
		"twice":               `{"version":2,"entries":[{"path":"/a","link":"x"},{"path":"/a","link":"y"}]}`,
		"no kind":             `{"version":2,"entries":[{"path":"/a"}]}`,
		"two kinds":           `{"version":2,"entries":[{"path":"/a","link":"x","absent":true}]}`,
		"hash with a path":    `{"version":2,"entries":[{"path":"/a","absent":true,"original":{"sha256":"../../etc/shadow"}}]}`,
		"mode":                `{"version":2,"entries":[{"path":"/a","sha256":"` + sum + `","mode":"99"}]}`,
		"owner":               `{"version":2,"entries":[{"path":"/a","sha256":"` + sum + `","uid":-1,"gid":0}]}`,
		"half an owner":       `{"version":2,"entries":[{"path":"/a","sha256":"` + sum + `","uid":1}]}`,
		"attribute":           `{"version":2,"entries":[{"path":"/a","sha256":"` + sum + `","xattrs":{"x\u0000":"eA=="}}]}`,
		"wrong type":          `{"version":2,"entries":{"path":"/a"}}`,
		"directory":           `{"version":2,"dirs":["../x"]}`,
		"kept":                `{"version":2,"kept":[{"path":"/a","sha256":"x"}]}`,
		"step outside":        `{"version":2,"journal":{"bootID":"","since":"2026-01-01T00:00:00Z","stage":"begun","steps":[{"path":"..","before":{"absent":true},"after":{"absent":true}}]}}`,
		"step of another":     `{"version":2,"journal":{"bootID":"","since":"2026-01-01T00:00:00Z","stage":"begun","steps":[{"path":"/a","before":{"absent":true},"after":{"link":"x"},"entry":{"path":"/b","link":"x"}}]}}`,
		"directory of a step": `{"version":2,"journal":{"bootID":"","since":"2026-01-01T00:00:00Z","stage":"begun","steps":[],"dirs":["/a/"]}}`,
	} {
		_, err := decode([]byte(text))
		require.Error(t, err, name)
	}
	at, root := machine(t)
	require.NoError(t, os.MkdirAll(at+dir, 0o755))
	f, err := os.Create(at + manifestPath(dir))
	require.NoError(t, err)
	require.NoError(t, f.Truncate(maxManifest+1))
	require.NoError(t, f.Close())
	_, err = storeOf(root, "boot").Restore(RestoreOptions{})
	require.ErrorContains(t, err, manifestPath(dir), "huge")
}

func FuzzManifest(f *testing.F) {
	at, root := func() (string, *host.Root) {
		at := f.TempDir()
		root, err := host.Open(at)
		require.NoError(f, err)
		return at, root
	}()
	require.NoError(f, os.MkdirAll(at+dir, 0o755))
	changes, err := Plan(root, []Item{{Path: "/x/y", Link: "z"}, {Path: "/f", File: &File{Data: []byte("f")}}})
	require.NoError(f, err)
	_, err = storeOf(root, "boot").begin(changes, []byte("x"))
	require.NoError(f, err)
	seed, err := os.ReadFile(at + manifestPath(dir))
	require.NoError(f, err)
	f.Add(seed)
	f.Add([]byte(`{"version":1,"entries":[{"path":"/a","sha256":"x"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decode(data)
		if err != nil {
			return
		}
		for _, e := range m.Entries {
			if !filepath.IsAbs(e.Path) || filepath.Clean(e.Path) != e.Path {
				t.Fatal(e.Path)
			}
		}
		for sum := range m.originals() {
			if filepath.Base(originalPath(dir, sum)) != sum || len(sum) != 64 {
				t.Fatal(sum)
			}
		}
		m.Version = manifestV
		if _, err := decode(m.encode()); err != nil {
			t.Fatalf("written anew it cannot be read: %v", err)
		}
	})
}
