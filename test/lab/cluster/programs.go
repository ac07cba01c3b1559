package cluster

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/gpuready/gpuready/test/lab/folder"
	"github.com/gpuready/gpuready/test/lab/namespace"
)

// Programs of the control plane.
const (
	etcd              = "etcd"
	apiserver         = "kube-apiserver"
	scheduler         = "kube-scheduler"
	controllerManager = "kube-controller-manager"
)

// planePrograms returns the control plane's programs with their arguments; path returns their paths.
func planePrograms(f *folder.Folder, o planeOptions, path func(name string) string) []namespace.Program {
	program := func(name string, args ...string) namespace.Program {
		return namespace.Program{Name: name, Path: path(name), Args: args, Log: f.Log(name)}
	}
	client := func(name string) namespace.Program {
		return program(name, "--kubeconfig="+f.Key(name+".kubeconfig"), "--leader-elect=false",
			"--bind-address=127.0.0.1", "--cert-dir="+f.Key(name), "--v=2",
			// The controller manager requests an account for each of its controllers; at 20 a second that takes 5 s.
			"--kube-api-qps=1000", "--kube-api-burst=1000")
	}
	// Programs allocate most during their start; fewer collections shorten it by a sixth.
	lazy := []string{"GOGC=200"}
	manager := client(controllerManager)
	manager.Args = append(manager.Args, "--root-ca-file="+f.Key("ca.crt"), "--service-account-private-key-file="+f.Key("sa.key"), "--use-service-account-credentials=true", "--controllers="+cmp.Or(o.Controllers, "*"))
	all := []namespace.Program{
		program(etcd, "--data-dir="+f.Join(etcd), "--unsafe-no-fsync", "--log-level=warn",
			"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379", "--listen-peer-urls=http://127.0.0.1:2380"),
		program(apiserver, "--etcd-servers=http://127.0.0.1:2379",
			"--bind-address=0.0.0.0", "--secure-port=443", "--advertise-address="+PlaneIP, "--service-cluster-ip-range="+serviceNet,
			"--tls-cert-file="+f.Key("apiserver.crt"), "--tls-private-key-file="+f.Key("apiserver.key"), "--client-ca-file="+f.Key("ca.crt"),
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins="+strings.Join(append([]string{"NodeRestriction"}, o.Admission...), ","), "--allow-privileged=true",
			"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+f.Key("sa.key"), "--service-account-signing-key-file="+f.Key("sa.key"),
			"--kubelet-certificate-authority="+f.Key("ca.crt"), "--kubelet-client-certificate="+f.Key("kubelet-client.crt"), "--kubelet-client-key="+f.Key("kubelet-client.key"),
			"--kubelet-preferred-address-types=InternalIP", "--v=2"),
		client(scheduler),
		manager,
	}
	if server := &all[1]; o.Audit != "" {
		server.Args = append(server.Args, "--audit-policy-file="+f.Key(auditPolicy), "--audit-log-path="+f.Log(audited), "--audit-log-mode=blocking")
	}
	for i := range all {
		all[i].Env = lazy
		all[i].Restart = all[i].Name == apiserver // scenarios kill it
	}
	return all
}

// Audit policy: the user, the request, and the response code.
const (
	auditPolicy = "audit.yaml"
	audited     = "audit"
)

// auditRules returns an audit policy for the requests of a group of users.
func auditRules(group string) string {
	return fmt.Sprintf(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - { level: Metadata, userGroups: [%q] }
  - { level: None }
`, group)
}

// Audited returns the file with the audit log.
func (p *controlPlane) Audited() string { return p.folder.Log(audited) }
