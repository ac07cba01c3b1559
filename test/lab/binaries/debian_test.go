package binaries

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

// programs are stand-ins for apt and dpkg: a release with fruit 1.2-3, which is one file.
var programs = map[string]string{
	"apt-get": `case "$1 $2" in
"-q update") grep -q 'http://mirror.example/debian/ sid main' "$(dirname "$APT_CONFIG")/sources.list" ;;
"-q --simulate") echo "Reading package lists..."; echo "Inst soil (1.0 Debian:12 [all])"; echo "Inst fruit (1.2-3 Debian:12 [amd64])"; echo "Conf soil (1.0 Debian:12 [all])" ;;
"-q download") shift 2; for p; do echo "$p" >"$p.deb"; done; echo "$*" >>"$LOG" ;;
indextargets*) echo "Other Other http://elsewhere/"; echo "Debian Debian http://mirror.example/debian/" ;;
esac`,
	"apt-cache": `case "$1" in
show) echo "Package: fruit"; echo "Version: 1.2-3" ;;
depends) printf 'fruit\n  Depends: fruit-peel\n  Depends: soil\nfruit-peel\n  PreDepends: fruit-wax\n |Depends: fruit-peel\n' ;;
esac`,
	"dpkg-deb": `mkdir -p "$3/usr/bin" && cp "$2" "$3/usr/bin/$(basename "$2" .deb)"`,
}

func standIns(t *testing.T) (log string) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range programs {
		built.Script(t, filepath.Join(dir, name), "set -e\n"+script)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	log = filepath.Join(dir, "log")
	t.Setenv("LOG", log)
	return log
}

func TestASetIsFetchedOnce(t *testing.T) {
	log, cache := standIns(t), t.TempDir()
	set := DebianSet{Release: "sid", Packages: []string{"fruit", "seed"}, Version: "1.2"}
	for range 2 {
		at, err := EnsureDebian(t.Context(), cache, set, io.Discard)
		require.NoError(t, err)
		for _, name := range set.Packages {
			data, err := os.ReadFile(filepath.Join(at, "usr/bin", name))
			require.NoError(t, err)
			require.Equal(t, name+"\n", string(data))
		}
	}
	data, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, "fruit seed\n", string(data))
}

func TestDependenciesAreFollowedByTheirNames(t *testing.T) {
	log := standIns(t)
	_, err := EnsureDebian(t.Context(), t.TempDir(), DebianSet{Release: "sid", Packages: []string{"fruit"}, Follow: "fruit-"}, io.Discard)
	require.NoError(t, err)
	data, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, "fruit fruit-peel fruit-wax\n", string(data))
}

func TestAWholeSetHasEverythingAptWouldInstall(t *testing.T) {
	log := standIns(t)
	_, err := EnsureDebian(t.Context(), t.TempDir(), DebianSet{Release: "sid", Packages: []string{"fruit"}, Whole: true}, io.Discard)
	require.NoError(t, err)
	data, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, "soil fruit\n", string(data))
}

func TestAnotherVersionIsRefusedAndLeavesNothing(t *testing.T) {
	standIns(t)
	cache := t.TempDir()
	_, err := EnsureDebian(t.Context(), cache, DebianSet{Release: "sid", Packages: []string{"fruit"}, Version: "1.3"}, io.Discard)
	require.ErrorContains(t, err, "fetch fruit from Debian's sid: it has version 1.2-3, not 1.3")
	entries, err := os.ReadDir(filepath.Join(cache, "debian"))
	require.NoError(t, err)
	for _, e := range entries {
		require.True(t, strings.HasSuffix(e.Name(), ".lock"), e.Name())
	}
}

func TestLeftoversOfAKilledFetchAreNotUsed(t *testing.T) {
	standIns(t)
	cache := t.TempDir()
	half := filepath.Join(cache, "debian/sid-fruit-1.2.fetching/root/usr/bin")
	require.NoError(t, os.MkdirAll(half, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(half, "half"), nil, 0o755))
	at, err := EnsureDebian(t.Context(), cache, DebianSet{Release: "sid", Packages: []string{"fruit"}, Version: "1.2"}, io.Discard)
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(at, "usr/bin/half"))
	require.NoDirExists(t, filepath.Join(cache, "debian/sid-fruit-1.2.fetching"))
}
