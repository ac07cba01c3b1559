package operator

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deployments"
)

// right is one verb on one resource, of the chart's files/rights.yaml.
type right struct {
	where, verb, resource, group string
	name                         string // one of the objects allowed; "": all
}

func (r right) String() string {
	resource := r.resource
	if r.group != "" {
		resource += "." + r.group
	}
	return r.where + ": " + r.verb + " " + resource
}

// chartRights returns all rights that the chart grants.
func chartRights(t *testing.T) (all []right) {
	t.Helper()
	rights, err := deployments.Rights()
	require.NoError(t, err)
	for _, r := range rights {
		for _, verb := range slices.Sorted(maps.Keys(r.Verbs)) {
			for _, resource := range r.Resources {
				one := right{where: r.Where, verb: verb, resource: resource, group: r.Group}
				if len(r.Names) > 0 {
					one.name = r.Names[0]
				}
				all = append(all, one)
			}
		}
	}
	return all
}

// request is an entry of the API server's audit log.
type request struct {
	Verb      string
	User      struct{ Username string }
	ObjectRef *struct{ Resource, Subresource, Namespace, Name, APIGroup string }
	Response  struct{ Code int } `json:"responseStatus"`
	Why       map[string]string  `json:"annotations"`
}

func (r request) String() string {
	return fmt.Sprintf("%s: %s %+v: %d %v", r.User.Username, r.Verb, *r.ObjectRef, r.Response.Code, r.Why)
}

// trail summarizes the requests that the chart's accounts have made so far.
type trail struct {
	path    string
	read    int64
	used    map[string]bool // in the form of right.String
	refused []string
	strange []string // requests allowed by roles other than the chart's
}

// allowed matches the audit annotation that names the role that allowed a request.
var allowed = regexp.MustCompile(`allowed by (?:Cluster)?RoleBinding "[^"]+" of (ClusterRole|Role) "([^"]+)"`)

// follow reads the entries added since its last call.
func (t *trail) follow() error {
	file, err := os.Open(t.path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(t.read, io.SeekStart); err != nil {
		return err
	}
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // the last one may not be complete yet
		}
		if err != nil {
			return err
		}
		t.read += int64(len(line))
		if !bytes.Contains(line, []byte(accountPrefix+namespace+":gpuready-operator")) {
			continue
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			return err
		}
		t.record(r)
	}
}

func (t *trail) record(r request) {
	if r.ObjectRef == nil {
		return // about the API itself, which everybody may read
	}
	if r.Response.Code == 403 {
		t.refused = append(t.refused, r.String())
		return
	}
	role := allowed.FindStringSubmatch(r.Why["authorization.k8s.io/reason"])
	if role == nil || !strings.HasPrefix(role[2], "gpuready-operator") {
		t.strange = append(t.strange, r.String())
		return
	}
	one := right{where: where(role[1], role[2], r.ObjectRef.Namespace), verb: r.Verb, resource: r.ObjectRef.Resource, group: r.ObjectRef.APIGroup}
	if r.ObjectRef.Subresource != "" {
		one.resource += "/" + r.ObjectRef.Subresource
	}
	t.used[one.String()] = true
	if r.Verb == "patch" && r.Response.Code == 201 {
		one.verb = "create" // server-side apply of a new object needs both
		t.used[one.String()] = true
	}
}

// accountPrefix begins the names of ServiceAccounts.
const accountPrefix = "system:serviceaccount:"

// role is one of the chart's roles.
type role struct{ kind, namespace, name, account string }

// roles are the roles into which rights.yaml is rendered, by the value of its key where.
var roles = map[string]role{
	"cluster":   {"ClusterRole", "", "gpuready-operator", "gpuready-operator"},
	"lease":     {"Role", "kube-system", "gpuready-operator-lease", "gpuready-operator"},
	"operands":  {"Role", operands, "gpuready-operator-operands", "gpuready-operator"},
	"default":   {"Role", "default", "gpuready-operator", "gpuready-operator"},
	"openshift": {"Role", "openshift", "gpuready-operator", "gpuready-operator"},
	"crds":      {"ClusterRole", "", "gpuready-operator-crds", "gpuready-operator-crds"},
	"cleanup":   {"ClusterRole", "", "gpuready-operator-cleanup", "gpuready-operator-cleanup"},
}

func where(kind, name, namespace string) string {
	for where, r := range roles {
		if r.kind == kind && r.name == name && (kind == "ClusterRole" || r.namespace == namespace) {
			return where
		}
	}
	return kind + " " + namespace + "/" + name
}
