package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// theHostsOwnDriverIsReported queries it as the init container of a driver container does, with
// read access to the host's root only.
func theHostsOwnDriverIsReported(t *testing.T, s *Suite) {
	end := s.hostDriver(t, "host-driver-none", "n1")
	require.Zero(t, end.ExitCode, "the simulated driver is a container's: %s", end.Message)

	libraries, err := filepath.Glob(s.Node("n1").PathOnNode("/run/nvidia/driver/usr/lib/*/libnvidia-ml.so.*.*"))
	require.NoError(t, err)
	require.Len(t, libraries, 1)
	_, version, _ := strings.Cut(filepath.Base(libraries[0]), ".so.")
	library := s.ReadFile(t, "n1", "/run/nvidia/driver/usr/lib/"+filepath.Base(filepath.Dir(libraries[0]))+"/"+filepath.Base(libraries[0]))
	release := strings.TrimSpace(s.ReadFile(t, "n1", "/proc/sys/kernel/osrelease"))
	files := map[string]string{
		"/usr/local/lib/libnvidia-ml.so.1":             library,
		"/usr/lib/modules/" + release + "/modules.dep": "updates/dkms/nvidia.ko:\n",
	}
	for path, content := range files {
		s.WriteFile(t, "n1", path, content)
		defer s.RemoveFile(t, "n1", path)
	}
	end = s.hostDriver(t, "host-driver-installed", "n1")
	require.Equal(t, int32(3), end.ExitCode, end.Message)
	require.Equal(t, "HostDriver: unknown at /", end.Message, "a library that does not bear its version")

	named := "/usr/local/lib/libnvidia-ml.so." + version
	s.WriteFile(t, "n1", named, library)
	defer s.RemoveFile(t, "n1", named)
	s.RemoveFile(t, "n1", "/usr/local/lib/libnvidia-ml.so.1")
	require.NoError(t, os.Symlink(filepath.Base(named), s.Node("n1").PathOnNode("/usr/local/lib/libnvidia-ml.so.1")))
	end = s.hostDriver(t, "host-driver-named", "n1")
	require.Equal(t, int32(3), end.ExitCode, end.Message)
	require.Equal(t, "HostDriver: "+version+" at /", end.Message)
}

// hostDriver runs gpu-validator host-driver in a restricted pod that mounts the host's root.
func (s *Suite) hostDriver(t *testing.T, name, node string) corev1.ContainerStateTerminated {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64),
			NodeSelector:    map[string]string{corev1.LabelHostname: node},
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(65534))},
			Containers: []corev1.Container{{
				Name: "main", Image: s.Image("validator"), Args: []string{"host-driver"}, ImagePullPolicy: corev1.PullIfNotPresent,
				Env: []corev1.EnvVar{{Name: "HOST_ROOT", Value: "/host"}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
				VolumeMounts: []corev1.VolumeMount{{Name: "host", MountPath: "/host", ReadOnly: true}},
			}},
			Volumes: []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}},
		},
	}
	_, err := s.World.Client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, c := range s.World.WaitEnded(t, "default", name).Status.ContainerStatuses {
		if c.State.Terminated != nil {
			return *c.State.Terminated
		}
	}
	t.Fatalf("%s has no end", name)
	return corev1.ContainerStateTerminated{}
}
