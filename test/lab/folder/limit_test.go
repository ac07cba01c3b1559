package folder

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// machine creates a kernel parameter, and returns the path for stored limits and the parameter.
func machine(t *testing.T, value string) (path, parameter string) {
	t.Helper()
	dir := t.TempDir()
	parameter = filepath.Join(dir, "max_user_instances")
	require.NoError(t, os.WriteFile(parameter, []byte(value), 0o600))
	return filepath.Join(dir, "limits"), parameter
}

func requireValue(t *testing.T, value int, parameter string) {
	t.Helper()
	now, err := readLimit(parameter)
	require.NoError(t, err)
	require.Equal(t, value, now)
}

func TestALimitIsRaisedUntilTheLastClusterIsDown(t *testing.T) {
	path, parameter := machine(t, "128\n")
	limits := Limits{parameter: 1024, parameter + "-of-another-kernel": 5}
	a, err := RaiseLimits(path, limits)
	require.NoError(t, err)
	b, err := RaiseLimits(path, limits)
	require.NoError(t, err)
	requireValue(t, 1024, parameter)
	require.NoError(t, a.Lower())
	requireValue(t, 1024, parameter)
	require.NoError(t, b.Lower())
	requireValue(t, 128, parameter)
	left, err := filepath.Glob(path + "*")
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestALimitRaisedByAKilledClusterIsRestoredByTheNext(t *testing.T) {
	path, parameter := machine(t, "128")
	limits := Limits{parameter: 1024}
	dead, err := RaiseLimits(path, limits)
	require.NoError(t, err)
	require.NoError(t, dead.file.Close()) // as the kernel does it
	next, err := RaiseLimits(path, limits)
	require.NoError(t, err)
	require.NoError(t, next.Lower())
	requireValue(t, 128, parameter)
}

func TestALimitThatIsHighEnoughOrSetByOthersStays(t *testing.T) {
	path, parameter := machine(t, "2048")
	r, err := RaiseLimits(path, Limits{parameter: 1024})
	require.NoError(t, err)
	require.NoError(t, r.Lower())
	requireValue(t, 2048, parameter)

	path, parameter = machine(t, "128")
	r, err = RaiseLimits(path, Limits{parameter: 1024})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(parameter, []byte("4096"), 0o600))
	require.NoError(t, r.Lower())
	requireValue(t, 4096, parameter)
}

func TestConcurrentClustersRestoreTheLimit(t *testing.T) {
	path, parameter := machine(t, "128")
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 20 {
				r, err := RaiseLimits(path, Limits{parameter: 1024})
				if err != nil {
					t.Error(err)
					return
				}
				if now, err := os.ReadFile(parameter); err == nil && len(now) > 0 && string(now) != strconv.Itoa(1024)+"\n" {
					t.Errorf("the limit is %s while a cluster is up", now)
				}
				if err := r.Lower(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	requireValue(t, 128, parameter)
}

func TestAForeignFileIsReported(t *testing.T) {
	path, parameter := machine(t, "128")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	_, err := RaiseLimits(path, Limits{parameter: 1024})
	require.ErrorContains(t, err, "remove it")
	requireValue(t, 128, parameter)
}
