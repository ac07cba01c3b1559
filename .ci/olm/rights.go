package main

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"sigs.k8s.io/yaml"
)

// right is one RBAC rule of the operator, in the chart's files/rights.yaml.
type right struct {
	Where     string            `json:"where"` // the head of rights.yaml lists the values
	Group     string            `json:"group"`
	Resources []string          `json:"resources"`
	Names     []string          `json:"names"` // of objects; none: all
	Verbs     map[string]string `json:"verbs"` // why the operator needs each verb
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
// namespaces, so the chart's rights there are granted cluster-wide. The rights of Helm's hooks (crds and
// cleanup) are left out: the Operator Lifecycle Manager does their work.
func operatorRules(rights []right) (own, cluster []any, err error) {
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
		case "crds", "cleanup":
		default:
			return nil, nil, fmt.Errorf("where is %q, which this program does not know", r.Where)
		}
	}
	return own, cluster, nil
}

// agents are the operands' ServiceAccounts. Each may use OpenShift's SCC privileged. Only those in
// withToken have other rights: the others have no token.
var agents = []string{"gpu-driver", "gpu-driver-simulator", "gpu-toolkit", "gpu-device-plugin", "gpu-mps-control-daemon", "gpu-dra-driver",
	"gpu-validator", "gpu-dcgm", "gpu-dcgm-exporter", "gpu-mig-manager"}

// withToken has, for each agent that uses the API server wherever the bundle is installed, the name of its
// Role and its ClusterRole. The MIG manager's rights are in
// deployments/static/mig-manager.yaml, for those who want it.
var withToken = map[string]string{"gpu-validator": "gpuready-validator", "gpu-dra-driver": "gpuready-dra-driver"}

// permissions returns the permissions and the clusterPermissions of the ClusterServiceVersion: what the
// lifecycle manager grants to each account. documents are the objects of the manifests.
func permissions(documents []object, rights []right) (own, cluster []any, err error) {
	ownRules, clusterRules, err := operatorRules(rights)
	if err != nil {
		return nil, nil, err
	}
	own = []any{account("gpuready-operator", ownRules)}
	cluster = []any{account("gpuready-operator", clusterRules)}
	for _, agent := range agents {
		rules := []any{object{
			"apiGroups": []string{"security.openshift.io"}, "resources": []string{"securitycontextconstraints"},
			"resourceNames": []string{"privileged"}, "verbs": []string{"use"},
		}}
		found := withToken[agent] == ""
		for _, o := range documents {
			metadata := at(o, "metadata")
			if withToken[agent] == "" || metadata["name"] != withToken[agent] || o["kind"] != "ClusterRole" && o["kind"] != "Role" {
				continue
			}
			found = true
			given, _ := o["rules"].([]any)
			if o["kind"] == "Role" && metadata["namespace"] != "default" {
				own = append(own, account(agent, given))
				continue
			}
			rules = append(rules, given...)
		}
		if !found {
			return nil, nil, fmt.Errorf("no manifest has the role %s of %s", withToken[agent], agent)
		}
		cluster = append(cluster, account(agent, rules))
	}
	return own, cluster, nil
}

func account(name string, rules []any) object {
	return object{"serviceAccountName": name, "rules": rules}
}
