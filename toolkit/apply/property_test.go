package apply_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/apply"
)

// After any sequence of changes, in a transaction or not, committed or rolled back,
// restore restores the original state if nobody else changed it.
func TestRestoreUndoesAnyHistory(t *testing.T) {
	base := scratch(t)
	paths := []string{"/etc/a", "/etc/link", "/etc/new", "/etc/dir/new", "/run/x", "/opt/deep/er/file"}
	rapid.Check(t, func(rt *rapid.T) {
		at, err := os.MkdirTemp(base, "p")
		require.NoError(rt, err)
		defer os.RemoveAll(at)
		for _, d := range []string{"/etc", "/run", "/usr/local"} {
			require.NoError(rt, os.MkdirAll(at+d, 0o755))
		}
		require.NoError(rt, os.WriteFile(at+"/etc/a", []byte("a"), 0o604))
		require.NoError(rt, os.Symlink("a", at+"/etc/link"))
		root, err := host.Open(at)
		require.NoError(rt, err)
		defer root.Close()
		before := tree(t, at)
		item := rapid.Custom(func(rt *rapid.T) apply.Item {
			item := apply.Item{Path: rapid.SampledFrom(paths).Draw(rt, "path")}
			switch rapid.IntRange(0, 3).Draw(rt, "kind") {
			case 0:
				item.Absent = true
			case 1:
				item.Link = rapid.SampledFrom([]string{"a", "b", "/nowhere"}).Draw(rt, "link")
			default:
				item.File = &apply.File{
					Data: []byte(rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(rt, "data")),
					Mode: rapid.SampledFrom([]os.FileMode{0, 0o600, 0o604}).Draw(rt, "mode"),
				}
			}
			return item
		})
		wants := rapid.SliceOfNDistinct(item, 0, 4, func(i apply.Item) string { return i.Path })
		for step := range rapid.IntRange(1, 6).Draw(rt, "steps") {
			items := wants.Draw(rt, fmt.Sprint(step))
			changes, err := apply.Plan(root, items)
			require.NoError(rt, err)
			if rapid.Bool().Draw(rt, "simple") {
				made, err := storeOf(root, "boot").Apply(items)
				require.NoError(rt, err)
				require.Len(rt, made, len(changes))
				continue
			}
			now := tree(t, at)
			s := storeOf(root, "boot")
			require.NoError(rt, s.Begin(changes, nil))
			if rapid.Bool().Draw(rt, "commit") {
				require.NoError(rt, s.Commit())
				continue
			}
			require.NoError(rt, s.Undo())
			if len(changes) > 0 && step > 0 && contains(now, dir) {
				require.Equal(rt, now, tree(t, at), "as before the transaction")
			}
		}
		require.NoError(rt, restore(root, "boot"))
		require.Equal(rt, before, tree(t, at))
	})
}

func contains(lines []string, p string) bool {
	for _, l := range lines {
		if len(l) > len(p) && l[:len(p)+1] == p+" " {
			return true
		}
	}
	return false
}
