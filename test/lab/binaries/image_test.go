package binaries

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func unpack(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		content, err := io.ReadAll(r)
		require.NoError(t, err)
		files[h.Name] = content
	}
}

func TestArchiveLeadsFromItsIndexToItsFiles(t *testing.T) {
	i := Image{Name: "example.com/x:1", Files: map[string][]byte{"/usr/bin/x": []byte("program")}, Entrypoint: []string{"/usr/bin/x"}}
	var archive, again bytes.Buffer
	require.NoError(t, i.archive(&archive))
	require.NoError(t, i.archive(&again))
	require.Equal(t, archive.Bytes(), again.Bytes(), "the same image, byte for byte")

	files := unpack(t, archive.Bytes())
	follow := func(d descriptor, into any) []byte {
		content := files["blobs/sha256/"+d.Digest[len("sha256:"):]]
		require.Len(t, content, d.Size)
		if into != nil {
			require.NoError(t, json.Unmarshal(content, into))
		}
		return content
	}
	var index struct{ Manifests []descriptor }
	require.NoError(t, json.Unmarshal(files["index.json"], &index))
	require.Equal(t, "example.com/x:1", index.Manifests[0].Annotations["io.containerd.image.name"])
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	follow(index.Manifests[0], &manifest)
	var config struct {
		Config struct{ Entrypoint []string }
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	follow(manifest.Config, &config)
	require.Equal(t, []string{"/usr/bin/x"}, config.Config.Entrypoint)
	require.Equal(t, []string{manifest.Layers[0].Digest}, config.Rootfs.DiffIDs)
	layer := unpack(t, follow(manifest.Layers[0], nil))
	require.Equal(t, "program", string(layer["usr/bin/x"]))
	require.Contains(t, layer, "usr/")
}

func TestAUserOwnsItsFolders(t *testing.T) {
	i := Image{
		Name: "example.com/x:1", User: "1000:100", Own: []string{"/home/x", "/tmp"},
		Files: map[string][]byte{"/home/x/a": nil, "/home/xy/b": nil}, Links: map[string]string{"/home/x/c": "a"},
	}
	own, err := i.owner()
	require.NoError(t, err)
	var layer bytes.Buffer
	require.NoError(t, packTar(&layer, i.Files, i.Links, i.Own, 0o755, own))
	owners := map[string]int{}
	for r := tar.NewReader(&layer); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		owners[h.Name] = h.Uid
	}
	require.Equal(t, map[string]int{"home/": 0, "home/x/": 1000, "home/x/a": 1000, "home/x/c": 1000, "home/xy/": 0, "home/xy/b": 0, "tmp/": 1000}, owners)

	i.User = "jovyan"
	require.ErrorContains(t, i.archive(io.Discard), `user "jovyan"`)
}

func TestPauseWaitsUntilItIsEnded(t *testing.T) {
	pause, err := PauseImage()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "pause")
	require.NoError(t, os.WriteFile(file, pause.Files["/pause"], 0o755))
	cmd := exec.Command(file)
	require.NoError(t, cmd.Start())
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, syscall.SIGTERM, exit.Sys().(syscall.WaitStatus).Signal())
}
