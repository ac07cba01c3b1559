package security

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/lab/binaries"
	testnode "github.com/gpuready/gpuready/test/lab/node"
)

// hidingImage has links that place a volume on /etc, and one that another volume then hides, so that
// the cause is no longer visible.
const hidingImage = "docker.io/library/hiding:v1"

func buildHidingImage(t *testing.T) string {
	_, loader, err := testnode.Glibc()
	require.NoError(t, err)
	data, err := os.ReadFile(loader)
	require.NoError(t, err)
	return buildImage(t, binaries.Image{
		Name:  hidingImage,
		Files: map[string][]byte{loader: data, "/etc/none": nil, "/d/none": nil},
		Links: map[string]string{"/d/l": "/", "/a/b/c": "/d"},
	})
}

// hookWritesThroughAVolume mounts a host folder as the container's /etc, where the hooks of a GPU's
// container write the loader's files. The hooks may refuse to start the container with a reason. The
// folder must be unchanged in either case.
func hookWritesThroughAVolume(t *testing.T, n *node) {
	const folder = "/var/lib/hook-attack"
	at := n.hostPath(folder)
	defer os.RemoveAll(at)
	for _, f := range []string{"/ld.so.cache", "/ld.so.conf", "/ld.so.conf.d/00-gpuready.conf", "/ld.so.conf.d/00-compat-gpuready.conf"} {
		n.WriteFile(t, n.name, folder+f, "the host's\n")
	}
	before := content(t, at)

	pod := withGPUs(n.shellPod("hiding", "ls /dev/nvidia[0-9]*"), 1)
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}}},
		{Name: "cover", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	main := &pod.Spec.Containers[0]
	main.Image, main.VolumeMounts = hidingImage, []corev1.VolumeMount{{Name: "host", MountPath: "/d/l/etc"}, {Name: "cover", MountPath: "/a/b/c"}}
	n.create(t, pod)
	now := n.starts(t, pod)
	require.Equal(t, before, content(t, at), "of a folder of the host")

	state := now.Status.ContainerStatuses[0].State
	switch {
	case state.Waiting != nil:
		require.Contains(t, state.Waiting.Message, "mount from the host")
	case state.Terminated != nil && state.Terminated.Reason == "StartError":
		require.Contains(t, state.Terminated.Message, "mount from the host")
	default:
		require.Equal(t, corev1.PodSucceeded, n.World.WaitEnded(t, pod.Namespace, pod.Name).Status.Phase)
	}
}

// content returns the content of the files below dir.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			files[path] = "a folder"
			return err
		}
		data, err := os.ReadFile(path)
		files[path] = string(data)
		return err
	}))
	return files
}
