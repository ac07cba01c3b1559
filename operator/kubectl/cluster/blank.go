package cluster

import (
	"regexp"

	corev1 "k8s.io/api/core/v1"
)

const blanked = "(blanked)"

// secretName matches names of variables with secret values.
var secretName = regexp.MustCompile(`(?i)(token|secret|passw|credential|apikey|api_key|private|auth|license|cookie)`)

// secretPatterns are blanked everywhere: passwords in URLs, tokens in headers, keys.
var secretPatterns = []struct {
	what *regexp.Regexp
	with []byte
}{
	{regexp.MustCompile(`://[^/\s"'@]+@`), []byte("://" + blanked + "@")},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9+/._~=-]{8,}`), []byte("$1 " + blanked)},
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`), []byte(blanked)},
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----`), []byte(blanked)},
	// Variables of a policy or container in JSON.
	{regexp.MustCompile(`(?is)("name":\s*"[^"]*(?:token|secret|passw|credential|apikey|api_key|private|auth|license|cookie)[^"]*",\s*"value":\s*)"(?:[^"\\]|\\.)*"`), []byte(`$1"` + blanked + `"`)},
}

func blank(data []byte) []byte {
	for _, b := range secretPatterns {
		data = b.what.ReplaceAll(data, b.with)
	}
	return data
}

// cleanPod blanks the values of variables with secret names.
func cleanPod(s *corev1.PodSpec) {
	for _, containers := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range containers {
			for j := range containers[i].Env {
				if e := &containers[i].Env[j]; e.Value != "" && secretName.MatchString(e.Name) {
					e.Value = blanked
				}
			}
		}
	}
}

// cleanNode removes what is irrelevant to GPUs: images, addresses and volumes.
func cleanNode(n *corev1.Node) {
	cleanMeta(&n.ObjectMeta)
	n.Status.Images, n.Status.Addresses, n.Status.VolumesAttached, n.Status.VolumesInUse = nil, nil, nil, nil
}
