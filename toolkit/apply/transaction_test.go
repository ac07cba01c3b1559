package apply

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

const why = "containerd.service"

func TestTransactionIsFoundByTheNextStart(t *testing.T) {
	at, root := machine(t)
	require.NoError(t, storeOf(root, "boot").Begin(changesFor(t, root, append(config(edited), wanted()...)), []byte(why)))
	require.Equal(t, stageWritten, read(t, root).Journal.Stage)
	for _, boot := range []string{"other boot", "boot"} {
		note, pending, err := storeOf(root, boot).Pending()
		require.NoError(t, err)
		require.True(t, pending)
		require.Equal(t, why, string(note))
	}
	require.NoError(t, storeOf(root, "boot").Commit())
	_, pending, err := storeOf(root, "boot").Pending()
	require.NoError(t, err)
	require.False(t, pending)
	require.Contains(t, describe(t, at+conf), edited)
	require.Empty(t, uninstall(t, root, "boot"))
}

func TestPartlyWrittenTransactionIsRolledBackByTheNextStart(t *testing.T) {
	at, root := machine(t)
	before := describe(t, at+conf)
	items := append(config(edited), wanted()...)
	_, err := storeOf(root, "boot").begin(changesFor(t, root, items), []byte(why))
	require.NoError(t, err)
	require.Equal(t, stageBegun, read(t, root).Journal.Stage)
	mustWrite(t, root, changesFor(t, root, config(edited)))
	_, pending, err := storeOf(root, "boot").Pending()
	require.NoError(t, err)
	require.False(t, pending)
	require.Equal(t, before, describe(t, at+conf))
	require.Nil(t, read(t, root).Journal)
}

func TestRollbackUndoesExactlyOneTransaction(t *testing.T) {
	at, root := machine(t)
	applyItems(t, root, "boot", append(config(edited), wanted()...))
	before, tree0, manifest := describe(t, at+conf), tree(t, at), read(t, root)
	items := append(config(edited+"more\n"), Item{Path: "/opt/new/file", File: &File{Data: []byte("x")}},
		Item{Path: wanted()[1].Path, Absent: true})
	require.NoError(t, storeOf(root, "boot").Begin(changesFor(t, root, items), nil))
	require.Contains(t, describe(t, at+conf), "more")
	found := read(t, root)
	for range 2 {
		left, err := storeOf(root, "boot").rollback(found)
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
	require.NoError(t, storeOf(root, "boot").Begin(changesFor(t, root, config(edited)), nil))
	require.NoError(t, os.WriteFile(at+conf, []byte(edited+"# theirs\n"), 0o600))
	require.EqualError(t, storeOf(root, "boot").Undo(), "not everything was restored: "+conf+" was changed by others since, and stays as it is")
	left := uninstall(t, root, "boot")
	require.Len(t, left, 1)
	require.Contains(t, left[0], `ours in it: ["[nvidia]"`)
}

func TestUnfinishedTransactionOnlyBlocksItsOwnFiles(t *testing.T) {
	at, root := machine(t)
	require.NoError(t, storeOf(root, "boot").Begin(changesFor(t, root, config(edited)), []byte(why)))
	require.ErrorIs(t, storeOf(root, "boot").Begin(changesFor(t, root, wanted()), nil), errPending)
	_, err := storeOf(root, "boot").Apply(config("x"))
	require.ErrorIs(t, err, errPending)
	applyItems(t, root, "boot", wanted())
	note, pending, err := storeOf(root, "boot").Pending()
	require.NoError(t, err)
	require.True(t, pending)
	require.Equal(t, why, string(note))
	require.Empty(t, uninstall(t, root, "boot"), "restore undoes it")
	require.True(t, len(tree(t, at)) > 0)
	_, err = os.Lstat(at + dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestNothingToChangeWritesNothing(t *testing.T) {
	_, root := machine(t)
	items := append(config(edited), wanted()...)
	applyItems(t, root, "boot", items)
	root.Trace(nil)
	var ops int
	root.Trace(countOps(&ops))
	for range 2 {
		changes := changesFor(t, root, items)
		require.Empty(t, changes)
		applyItems(t, root, "boot", items)
		require.NoError(t, storeOf(root, "boot").Begin(changes, []byte(why)))
		require.NoError(t, storeOf(root, "boot").Commit())
		_, err := storeOf(root, "boot").Sweep()
		require.NoError(t, err)
		_, err = storeOf(root, "boot").Restore(RestoreOptions{DryRun: true})
		require.NoError(t, err)
	}
	require.Zero(t, ops)
}

// The state at the time of the plan is kept as the original.
func TestFileThatChangesBetweenPlanAndApplyIsNotOverwritten(t *testing.T) {
	at, root := machine(t)
	changes := changesFor(t, root, config(edited))
	require.NoError(t, os.WriteFile(at+conf, []byte("theirs"), 0o600))
	_, err := storeOf(root, "boot").apply(changes)
	require.ErrorIs(t, err, errChanged)
	require.ErrorContains(t, err, conf)
	require.Contains(t, describe(t, at+conf), "theirs")
	applyItems(t, root, "boot", config(edited))
	uninstall(t, root, "boot")
	require.Contains(t, describe(t, at+conf), "theirs")
	require.False(t, errors.Is(err, errPending))
}
