package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/library"
)

// plainLibrary returns a shared library of the given gcc arguments.
func plainLibrary(t *testing.T, args ...string) []byte {
	dir := t.TempDir()
	cmd := exec.Command("gcc", append([]string{"-x", "c", "-", "-shared", "-fPIC", "-s", "-o", dir + "/l"}, args...)...)
	cmd.Stdin = strings.NewReader("int cuInit;")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	data, err := os.ReadFile(dir + "/l")
	require.NoError(t, err)
	return data
}

func TestErrorsNameAFewLibraries(t *testing.T) {
	rootfs, state := bundled(t)
	elf, err := soleLibrary()
	require.NoError(t, err)
	plain := plainLibrary(t)
	put := func(name string, data []byte) {
		require.NoError(t, os.MkdirAll(path.Dir(rootfs+name), 0o755))
		require.NoError(t, os.WriteFile(rootfs+name, data, 0o755))
	}
	put(loader, elf)
	put("/x/libcuda.so.1", elf)
	put("/usr/local/cuda/compat/libcuda.so.999.1", plain)
	put("/usr/local/cuda/compat/first", plain)
	for i := range 2000 {
		require.NoError(t, os.Link(rootfs+"/usr/local/cuda/compat/first", rootfs+"/usr/local/cuda/compat/lib"+strings.Repeat("a", 230)+fmt.Sprintf("%06d.so", i)))
	}
	put("/etc/ld.so.cache", nil)
	volume := t.TempDir()
	require.NoError(t, os.WriteFile(volume+"/f", nil, 0o644))
	bind(t, volume+"/f", rootfs+"/etc/ld.so.cache") // a pod's subPath volume, or a configMap's file
	_, stderr, err := call(state, "all", "--", "enable-cuda-compat", "--host-driver-version=570.86.15", "--", "update-ldcache", "--folder", "/x")
	require.ErrorContains(t, err, " and 1992 more")
	require.Less(t, len(err.Error())+len(stderr), 5000)
}

func TestWarningsAreShort(t *testing.T) {
	rootfs, state := bundled(t)
	compat := rootfs + "/usr/local/cuda/compat"
	require.NoError(t, os.MkdirAll(compat, 0o755))
	text := `{"CUDA Version":"99.0","Driver":[` + strings.TrimSuffix(strings.Repeat("1,", 32000), ",") + `]}`
	note := binary.LittleEndian.AppendUint32(nil, uint32(len("NVIDIA Corporation")+1))
	note = binary.LittleEndian.AppendUint32(note, uint32(len(text)))
	note = binary.LittleEndian.AppendUint32(note, 1)
	note = append(append(append(note, "NVIDIA Corporation\x00\x00"...), text...), 0)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/note", note, 0o600))
	require.NoError(t, os.WriteFile(dir+"/n.s", []byte(".section .note.cuda.fwd_compatibility,\"\",@note\n.incbin \""+dir+"/note\"\n"), 0o600))
	out, err := exec.Command("gcc", "-shared", "-o", compat+"/libcuda.so.999.1", dir+"/n.s").CombinedOutput()
	require.NoError(t, err, string(out))
	_, stderr, err := call(state, "enable-cuda-compat", "--host-driver-version=570.86.15")
	require.NoError(t, err)
	require.Contains(t, stderr, "works on drivers 1, 1, ")
	require.Less(t, len(stderr), 1000)
}

// Names of files that only root may list, and what such files say of themselves, must not
// get into the cache, which everybody may read.
func TestTheCacheNamesNothingOfAVolume(t *testing.T) {
	rootfs, state := bundled(t)
	elf, err := soleLibrary()
	require.NoError(t, err)
	volume := t.TempDir()
	require.NoError(t, os.MkdirAll(volume+"/closed", 0o700))
	secret := plainLibrary(t, "-Wl,-soname,SONAME-OF-A-SECRET-FILE")
	require.NoError(t, os.WriteFile(volume+"/closed/lib-customer-acme-prod.so.7", secret, 0o400))
	for file, data := range map[string][]byte{rootfs + loader: elf, rootfs + "/x/libcuda.so.1": elf, rootfs + "/v/none": nil, rootfs + "/etc/ld.so.conf": []byte("/v/closed\n")} {
		require.NoError(t, os.MkdirAll(path.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, data, 0o444))
	}
	bind(t, volume, rootfs+"/v")
	_, stderr, err := call(state, "update-ldcache", "--folder", "/x")
	require.NoError(t, err, stderr)
	data, err := os.ReadFile(rootfs + "/etc/ld.so.cache")
	require.NoError(t, err)
	made, err := library.ParseCache(data)
	require.NoError(t, err)
	for _, e := range made.Entries {
		require.Equal(t, "/x", path.Dir(e.Path), "%+v", e)
	}
}
