package recipe

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFabricPackagesAreThoseOfTheRepositories compares names with files in NVIDIA's repositories for Debian 12 (2025-08)
// and those that its own driver container installs (NVIDIA/gpu-driver-container, rhel9 and debian13).
func TestFabricPackagesAreThoseOfTheRepositories(t *testing.T) {
	pins := func(f family, version, arch string) (all []string) {
		for _, p := range listFabric(f, version, arch) {
			all = append(all, p.pin(f))
		}
		return all
	}
	require.Equal(t, []string{
		"nvidia-fabricmanager=580.95.05-1", "libnvidia-nscq=580.95.05-1", "nvidia-imex=580.95.05-1", "nvlsm", "libibumad3", "libnvsdm=580.95.05-1",
	}, pins(apt, "580.95.05", "x86_64"))
	require.Equal(t, []string{
		"nvidia-fabricmanager-575=575.57.08-1", "libnvidia-nscq-575=575.57.08-1", "nvidia-imex-575=575.57.08-1", "nvlsm", "libibumad3", "libnvsdm-575=575.57.08-1",
	}, pins(apt, "575.57.08", "x86_64"))
	require.Equal(t, []string{"nvidia-fabricmanager-535=535.261.03-1", "libnvidia-nscq-535=535.261.03-1"}, pins(apt, "535.261.03", "x86_64"))
	require.Equal(t, []string{
		"nvidia-fabric-manager-570.172.08", "libnvidia-nscq-570-570.172.08", "nvidia-imex-570-570.172.08", "nvlsm", "libibumad",
	}, pins(rhel, "570.172.08", "aarch64"))
	require.Equal(t, []string{
		"nvidia-fabricmanager-580.95.05", "libnvidia-nscq-580.95.05", "nvidia-imex-580.95.05", "nvlsm", "libibumad", "libnvsdm-580.95.05",
	}, pins(rhel, "580.95.05", "x86_64"))
}

func TestFabricPackagesAreOfTheDriversVersion(t *testing.T) {
	want := listFabric(apt, "580.95.05", "x86_64")
	files := []string{
		"libibumad3_44.0-2_amd64.deb", "libnvidia-nscq_580.95.05-1_amd64.deb", "libnvsdm_580.95.05-1_amd64.deb",
		"nvidia-fabricmanager_580.95.05-1_amd64.deb", "nvidia-imex_580.95.05-1_amd64.deb", "nvlsm_2025.06.10-1_amd64.deb",
	}
	require.NoError(t, checkFabric(want, files))
	require.ErrorContains(t, checkFabric(want, files[1:]), "there is no package libibumad3")
	files[3] = "nvidia-fabricmanager_580.105.08-1_amd64.deb"
	require.EqualError(t, checkFabric(want, files),
		"the package nvidia-fabricmanager is of 580.105.08, and the driver of 580.95.05: both have to be of one version")
	require.NoError(t, checkFabric(listFabric(rhel, "570.172.08", "aarch64"), []string{
		"nvidia-fabric-manager-570.172.08-1.aarch64.rpm", "libnvidia-nscq-570-570.172.08-1.aarch64.rpm", "nvidia-imex-570-570.172.08-1.aarch64.rpm",
		"nvlsm-2025.06.10-1.aarch64.rpm", "libibumad-54.0-1.el9.aarch64.rpm",
	}))
}

// debs makes stand-in packages of Debian with one file each.
func debs(t *testing.T, packages map[string]string, version func(string) string) string {
	t.Helper()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("needs dpkg-deb")
	}
	to := t.TempDir()
	for name, file := range packages {
		dir := t.TempDir()
		require.NoError(t, os.Chmod(dir, 0o755))
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "DEBIAN"), 0o755))
		control := "Package: " + name + "\nVersion: " + version(name) + "-1\nArchitecture: amd64\nMaintainer: nobody <nobody@example.com>\nDescription: stand-in\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "DEBIAN/control"), []byte(control), 0o644))
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte("of "+name), 0o755))
		out, err := exec.Command("dpkg-deb", "--build", "--root-owner-group", dir, to).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return to
}

func TestFabricPackagesComeFromAFolder(t *testing.T) {
	packages := map[string]string{
		"nvidia-fabricmanager": "usr/bin/nv-fabricmanager", "libnvidia-nscq": "usr/lib/x86_64-linux-gnu/libnvidia-nscq.so.2", "nvidia-imex": "usr/bin/nvidia-imex",
		"nvlsm": "opt/nvidia/nvlsm/sbin/nvlsm", "libibumad3": "usr/lib/x86_64-linux-gnu/libibumad.so.3", "libnvsdm": "usr/lib/x86_64-linux-gnu/libnvsdm.so.1",
	}
	versions := func(other string) func(string) string {
		return func(name string) string {
			switch name {
			case "nvlsm", "libibumad3":
				return "2025.06.10"
			case other:
				return "580.105.08"
			}
			return "580.95.05"
		}
	}
	s := knownSettings("debian12", func(s *Settings) { s.TargetArch, s.Fabric, s.ContainerTool = "x86_64", fabricOn, NoTool })
	s.FabricPackages = debs(t, packages, versions(""))
	dir, err := s.findFabric(t.Context(), t.TempDir())
	require.NoError(t, err)
	for _, file := range packages {
		require.FileExists(t, filepath.Join(dir, file))
	}

	s.FabricPackages = debs(t, packages, versions("nvidia-imex"))
	_, err = s.findFabric(t.Context(), t.TempDir())
	require.ErrorContains(t, err, "nvidia-imex is of 580.105.08")
	s.Fabric = fabricAuto
	require.NoError(t, s.Complete()) // a log
	dir, err = s.findFabric(t.Context(), t.TempDir())
	require.NoError(t, err)
	require.Empty(t, dir, "auto warns")
}

// A file of keys that has NVIDIA's key and another one would let the other one sign packages.
func TestOnlyTheKeyOfTheRepositoryIsTrusted(t *testing.T) {
	if _, err := exec.LookPath("gpg"); err != nil {
		t.Skip("needs gpg")
	}
	home := t.TempDir()
	gpg := func(args ...string) []byte {
		cmd := exec.Command("gpg", append([]string{"--homedir", home, "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""}, args...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		require.NoError(t, err, "%s", stderr.String())
		return out
	}
	t.Cleanup(func() { _ = exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run() })
	fingerprint := func(name, algorithm string) string {
		gpg("--quick-generate-key", name, algorithm)
		for line := range strings.Lines(string(gpg("--with-colons", "--list-keys", name))) {
			if f := strings.Split(line, ":"); f[0] == "fpr" {
				return strings.ToLower(f[9])
			}
		}
		t.Fatal("gpg made no key")
		return ""
	}
	one, two := fingerprint("one", "rsa2048"), fingerprint("two", "ed25519")
	for name, print := range map[string]string{"one": one, "two": two} {
		require.NoError(t, checkKey(gpg("--armor", "--export", name), print))
	}
	require.ErrorContains(t, checkKey(gpg("--armor", "--export", "one"), two), "its key has the fingerprint "+one)
	both := gpg("--armor", "--export", "one", "two")
	require.ErrorContains(t, checkKey(both, one), "it has 2 keys")
	alone := gpg("--armor", "--export", "one")
	require.ErrorContains(t, checkKey(append(alone, gpg("--armor", "--export", "two")...), one), "one block of PGP")
	require.Error(t, checkKey(alone[:len(alone)/2], one))

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(both) }))
	defer server.Close()
	s := knownSettings("debian12", nil)
	require.ErrorContains(t, s.writeKey(t.Context(), server.URL, "3bf863cc.pub", filepath.Join(t.TempDir(), "key")), "it has 2 keys")
}
