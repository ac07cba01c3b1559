package main

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"sigs.k8s.io/yaml"
)

// right is a right in the chart's files/rights.yaml.
type right struct {
	Where     string            `json:"where"`
	Group     string            `json:"group"`
	Resources []string          `json:"resources"`
	Names     []string          `json:"names"`
	Verbs     map[string]string `json:"verbs"`
}

func readRights(path string) ([]right, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []right
	if err := yaml.UnmarshalStrict(data, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

// operatorRules returns the operator's rules in its own namespace, which is also that
// of the operands, and on the cluster. A bundle cannot grant rights in other
// namespaces, so the chart's rights there are granted cluster-wide.
func operatorRules(rights []right) (own, cluster []any) {
	for _, r := range rights {
		rule := object{"apiGroups": []string{r.Group}, "resources": r.Resources, "verbs": slices.Sorted(maps.Keys(r.Verbs))}
		if len(r.Names) > 0 {
			rule["resourceNames"] = r.Names
		}
		switch r.Where {
		case "operands":
			own = append(own, rule)
		case "cluster", "lease", "default", "openshift":
			cluster = append(cluster, rule)
		}
	}
	return own, cluster
}

// agents are the operands' ServiceAccounts. Only those in withToken have rights in
// Kubernetes: the others have no token. On OpenShift each uses the SCC that its pods
// need.
var agents = []string{"gpu-driver", "gpu-driver-simulator", "gpu-toolkit", "gpu-device-plugin", "gpu-mps-control-daemon", "gpu-dra-driver",
	"gpu-validator", "gpu-dcgm", "gpu-dcgm-exporter", "gpu-mig-manager"}

// withToken are the agents that use the API server wherever the bundle is installed, by
// the names of their roles. The MIG manager's rights are in
// deployments/static/mig-manager.yaml, for those who want it.
var withToken = map[string]string{"gpu-validator": "gpuready-validator", "gpu-dra-driver": "gpuready-dra-driver"}

// permissions returns the rights that the lifecycle manager grants to each account.
func permissions(documents []object, rights []right) (own, cluster []any) {
	ownRules, clusterRules := operatorRules(rights)
	own = []any{account("gpuready-operator", ownRules)}
	cluster = []any{account("gpuready-operator", clusterRules)}
	for _, agent := range agents {
		rules := []any{object{
			"apiGroups": []string{"security.openshift.io"}, "resources": []string{"securitycontextconstraints"},
			"resourceNames": []string{"privileged"}, "verbs": []string{"use"},
		}}
		for _, o := range documents {
			metadata := at(o, "metadata")
			if withToken[agent] == "" || metadata["name"] != withToken[agent] || o["kind"] != "ClusterRole" && o["kind"] != "Role" {
				continue
			}
			given, _ := o["rules"].([]any)
			if o["kind"] == "Role" && metadata["namespace"] != "default" {
				own = append(own, account(agent, given))
				continue
			}
			rules = append(rules, given...)
		}
		cluster = append(cluster, account(agent, rules))
	}
	return own, cluster
}

func account(name string, rules []any) object {
	return object{"serviceAccountName": name, "rules": rules}
}
