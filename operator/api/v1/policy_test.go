package v1_test

import "fmt"

// policy is one in YAML, of this spec in YAML's flow style.
func policy(spec string) []byte {
	return fmt.Appendf(nil, "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: gpu-cluster-policy}\nspec: %s\n", spec)
}
