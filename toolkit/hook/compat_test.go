package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/toolkit/hook/rootfs"
)

// libcuda compiles a library with a note like NVIDIA's.
func libcuda(t testing.TB, file, text string) {
	t.Helper()
	source := "int cuInit;\n"
	if text != "" {
		source += fmt.Sprintf("__attribute__((section(%q), used, aligned(4))) static const struct { int name, text, type; char n[20], t[%d]; } note = {19, %d, 1, %q, %q};\n",
			noteSection, (len(text)+4)/4*4, len(text), noteName, text)
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	cmd := exec.Command("gcc", "-x", "c", "-", "-shared", "-fPIC", "-o", file)
	cmd.Stdin = strings.NewReader(source)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

const r575 = `{"Format":1,"CUDA Version":"12.9","Driver":[535,550,560,565,570,575],"Device":[1,2,7]}`

func TestChoose(t *testing.T) {
	plain, noted := t.TempDir()+"/plain", t.TempDir()+"/noted"
	libcuda(t, plain, "")
	libcuda(t, noted, r575)
	for name, c := range map[string]struct {
		files map[string]string // below /usr/local/cuda/compat
		dir   string
		host  hostCUDA
		want  string
		why   string
		err   string
	}{
		"newer":                       {files: map[string]string{"libcuda.so.575.57.08": plain}, host: hostCUDA{Driver: "570.86.15"}, want: compatDir},
		"newer, and says so":          {files: map[string]string{"libcuda.so.575.57.08": noted}, host: hostCUDA{Driver: "570.86.15"}, want: compatDir},
		"same major":                  {files: map[string]string{"libcuda.so.575.57.08": noted}, host: hostCUDA{Driver: "575.10.1"}},
		"older":                       {files: map[string]string{"libcuda.so.575.57.08": noted}, host: hostCUDA{Driver: "580.95.05"}},
		"not on this driver":          {files: map[string]string{"libcuda.so.575.57.08": noted}, host: hostCUDA{Driver: "470.1"}, why: "works on drivers 535, 550, 560, 565, 570, 575 and not on 470.1"},
		"nothing known of the host":   {files: map[string]string{"libcuda.so.575.57.08": noted}},
		"driver is no version":        {host: hostCUDA{Driver: "*.*"}, err: "570.86.15"},
		"not there":                   {host: hostCUDA{Driver: "570.1"}},
		"empty":                       {files: map[string]string{}, host: hostCUDA{Driver: "570.1"}},
		"two of them":                 {files: map[string]string{"libcuda.so.575.57.08": plain, "libcuda.so.580.1.1": plain}, host: hostCUDA{Driver: "570.1"}, why: "2 libraries"},
		"only a name without version": {files: map[string]string{"libcuda.so.1": plain}, host: hostCUDA{Driver: "470.1"}},
		"version is no number":        {files: map[string]string{"libcuda.so.x.y": plain}, host: hostCUDA{Driver: "470.1"}, why: "not a driver version"},
		"higher CUDA":                 {files: map[string]string{"libcuda.so.1.1": noted}, host: hostCUDA{CUDA: "12.8", Driver: "540.3"}, want: compatDir},
		"same CUDA":                   {files: map[string]string{"libcuda.so.1.1": noted}, host: hostCUDA{CUDA: "12.9"}},
		"lower CUDA":                  {files: map[string]string{"libcuda.so.1.1": noted}, host: hostCUDA{CUDA: "12.10"}},
		"CUDA not said":               {files: map[string]string{"libcuda.so.1.1": plain}, host: hostCUDA{CUDA: "12.8"}},
		"another folder":              {files: map[string]string{"../compat_orin/libcuda.so.1.1": noted}, dir: "/usr/local/cuda/compat_orin", host: hostCUDA{CUDA: "12.8"}, want: "/usr/local/cuda/compat_orin"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, from := range c.files {
				file = filepath.Join(dir, compatDir, file)
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
				data, err := os.ReadFile(from)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(file, data, 0o755))
			}
			if c.files != nil {
				require.NoError(t, os.MkdirAll(dir+compatDir, 0o755))
			}
			if c.dir == "" {
				c.dir = compatDir
			}
			got, why, err := choose(t, dir, c.dir, c.host)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			if c.why == "" {
				require.Empty(t, why)
			}
			require.Contains(t, why, c.why)
		})
	}
}

func choose(t *testing.T, root, dir string, h hostCUDA) (string, string, error) {
	t.Helper()
	r, err := rootfs.Open(root)
	require.NoError(t, err)
	defer r.Close()
	return chooseCompat(r, dir, h)
}

// None of these is used, and none blocks or stops the container.
func TestHostileLibrariesAreNotUsed(t *testing.T) {
	for name, hostile := range map[string]func(t *testing.T, file string){
		"pipe": func(t *testing.T, file string) { require.NoError(t, syscall.Mkfifo(file, 0o644)) },
		"link": func(t *testing.T, file string) { require.NoError(t, os.Symlink("/proc/self/exe", file)) },
		"text": func(t *testing.T, file string) { require.NoError(t, os.WriteFile(file, []byte("text"), 0o644)) },
		"endless": func(t *testing.T, file string) {
			head := bytes.Repeat([]byte{0xff}, 64)
			copy(head, "\x7fELF\x02\x01\x01")
			require.NoError(t, os.WriteFile(file, head, 0o644))
			require.NoError(t, os.Truncate(file, 1<<40))
		},
		"sections in a hole": func(t *testing.T, file string) {
			head := make([]byte, 64)
			copy(head, "\x7fELF\x02\x01\x01")
			binary.LittleEndian.PutUint64(head[40:], 1<<39)
			binary.LittleEndian.PutUint16(head[58:], 64)
			binary.LittleEndian.PutUint16(head[60:], maxSections+1)
			require.NoError(t, os.WriteFile(file, head, 0o644))
			require.NoError(t, os.Truncate(file, 1<<40))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.MkdirAll(dir+compatDir, 0o755))
			hostile(t, dir+compatDir+"/libcuda.so.999.1")
			got, _, err := choose(t, dir, compatDir, hostCUDA{Driver: "570.1"})
			require.NoError(t, err)
			require.Empty(t, got)
		})
	}
}

func FuzzNote(f *testing.F) {
	file := f.TempDir() + "/libcuda.so"
	libcuda(f, file, r575)
	data, err := os.ReadFile(file)
	require.NoError(f, err)
	f.Add(data)
	f.Add(data[:100])
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := parseNote(bytes.NewReader(data))
		if err != nil && n != nil {
			t.Fatal("both a note and an error")
		}
	})
}

func FuzzVersions(f *testing.F) {
	f.Add("12.8", "v13")
	f.Fuzz(func(t *testing.T, a, b string) {
		if compareVersions(a, b) != -compareVersions(b, a) {
			t.Fatalf("%q and %q", a, b)
		}
	})
}
