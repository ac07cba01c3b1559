package install

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/toolkit/change"
)

var restart = map[string]string{"restart": "containerd.service"}

func TestTransactionIsFoundByTheNextStart(t *testing.T) {
	at, root := machine(t)
	tx, err := Begin(root, dir, "boot", planned(t, root, append(config(edited), wanted()...)), restart)
	require.NoError(t, err)
	found, err := Pending(root, dir, "boot")
	require.NoError(t, err)
	require.Equal(t, StageBegun, found.Stage)
	require.Equal(t, restart, found.Data)
	written, err := found.Written()
	require.NoError(t, err)
	require.False(t, written)
	require.NoError(t, tx.Write())
	require.NoError(t, tx.Advance("restarted", map[string]string{"at": "noon"}))
	found, err = Pending(root, dir, "other boot")
	require.NoError(t, err)
	require.True(t, found.Rebooted())
	require.Equal(t, "restarted", found.Stage)
	require.Equal(t, map[string]string{"restart": "containerd.service", "at": "noon"}, found.Data)
	found, err = Pending(root, dir, "boot")
	require.NoError(t, err)
	require.False(t, found.Rebooted())
	written, err = found.Written()
	require.NoError(t, err)
	require.True(t, written)
	require.NoError(t, found.Commit())
	found, err = Pending(root, dir, "boot")
	require.NoError(t, err)
	require.Nil(t, found)
	require.Contains(t, describe(t, at+conf), edited)
	require.Empty(t, uninstall(t, root, "boot"))
}

func TestRollbackUndoesExactlyOneTransaction(t *testing.T) {
	at, root := machine(t)
	apply(t, root, "boot", append(config(edited), wanted()...))
	before, tree0, manifest := describe(t, at+conf), tree(t, at), read(t, root)
	items := append(config(edited+"more\n"), change.Item{Path: "/opt/new/file", File: &change.File{Data: []byte("x")}},
		change.Item{Path: wanted()[1].Path, Absent: true})
	tx, err := Begin(root, dir, "boot", planned(t, root, items), nil)
	require.NoError(t, err)
	require.NoError(t, tx.Write())
	require.Contains(t, describe(t, at+conf), "more")
	found, err := Pending(root, dir, "boot")
	require.NoError(t, err)
	for range 2 {
		left, err := found.Rollback()
		require.NoError(t, err)
		require.Empty(t, left)
		require.Equal(t, before, describe(t, at+conf))
		require.Equal(t, tree0, tree(t, at))
		require.Equal(t, manifest, read(t, root))
	}
	require.Empty(t, uninstall(t, root, "boot"))
}

func TestRollbackLeavesWhatOthersChangedMeanwhile(t *testing.T) {
	at, root := machine(t)
	tx, err := Begin(root, dir, "boot", planned(t, root, config(edited)), nil)
	require.NoError(t, err)
	require.NoError(t, tx.Write())
	require.NoError(t, os.WriteFile(at+conf, []byte(edited+"# theirs\n"), 0o600))
	left, err := tx.Rollback()
	require.NoError(t, err)
	require.Equal(t, []string{conf + " was changed by others since, and stays as it is"}, left)
	left = uninstall(t, root, "boot")
	require.Len(t, left, 1)
	require.Contains(t, left[0], `ours in it: ["[nvidia]"`)
}

func TestUnfinishedTransactionOnlyBlocksItsOwnFiles(t *testing.T) {
	at, root := machine(t)
	_, err := Begin(root, dir, "boot", planned(t, root, config(edited)), restart)
	require.NoError(t, err)
	_, err = Begin(root, dir, "boot", planned(t, root, wanted()), nil)
	require.ErrorIs(t, err, ErrPending)
	require.ErrorIs(t, Apply(root, dir, "boot", planned(t, root, config("x"))), ErrPending)
	apply(t, root, "boot", wanted())
	found, err := Pending(root, dir, "boot")
	require.NoError(t, err)
	require.Equal(t, restart, found.Data)
	require.Empty(t, uninstall(t, root, "boot"), "restore undoes it")
	require.True(t, len(tree(t, at)) > 0)
	_, err = os.Lstat(at + dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestNothingToChangeWritesNothing(t *testing.T) {
	_, root := machine(t)
	items := append(config(edited), wanted()...)
	apply(t, root, "boot", items)
	root.Trace(nil)
	var ops int
	root.Trace(countOps(&ops))
	for range 2 {
		changes := planned(t, root, items)
		require.Empty(t, changes)
		require.NoError(t, Apply(root, dir, "boot", changes))
		tx, err := Begin(root, dir, "boot", changes, restart)
		require.NoError(t, err)
		require.NoError(t, tx.Write())
		require.NoError(t, tx.Advance("restarted", nil))
		require.NoError(t, tx.Commit())
		_, err = Sweep(root, dir, "boot")
		require.NoError(t, err)
		_, err = Restore(root, dir, "boot", RestoreOptions{DryRun: true})
		require.NoError(t, err)
	}
	require.Zero(t, ops)
}

// The state at the time of the plan is kept as the original.
func TestFileThatChangesBetweenPlanAndApplyIsNotOverwritten(t *testing.T) {
	at, root := machine(t)
	changes := planned(t, root, config(edited))
	require.NoError(t, os.WriteFile(at+conf, []byte("theirs"), 0o600))
	err := Apply(root, dir, "boot", changes)
	require.ErrorIs(t, err, change.ErrChanged)
	require.ErrorContains(t, err, conf)
	require.Contains(t, describe(t, at+conf), "theirs")
	apply(t, root, "boot", config(edited))
	uninstall(t, root, "boot")
	require.Contains(t, describe(t, at+conf), "theirs")
	require.False(t, errors.Is(err, ErrPending))
}
