package state

import (
	"errors"
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// setPodSecurity applies the policy's security contexts of pods: that of an operand has
// precedence, field by field, over that of all.
func (r *renderer) setPodSecurity(pod *corev1.PodSpec, own podFields) {
	for _, source := range []struct {
		field  string
		object *v1.Object
	}{{"daemonsets.podSecurityContext", r.spec.Daemonsets.PodSecurityContext}, {own.path + ".podSecurityContext", own.spec.PodSecurityContext}} {
		if source.object.IsEmpty() {
			continue
		}
		next := &corev1.PodSecurityContext{}
		if pod.SecurityContext != nil {
			next = pod.SecurityContext.DeepCopy()
		}
		err := source.object.Decode(next)
		if next.RunAsNonRoot != nil && *next.RunAsNonRoot {
			r.reportInvalid(source.field, "runAsNonRoot: the containers write root's files of the host; it", "is left out")
		}
		next.RunAsNonRoot, next.WindowsOptions = nil, nil
		if err == nil {
			err = validPodSecurity(next, pod.HostNetwork)
		}
		if err != nil {
			r.reportInvalid(source.field, err.Error(), "is left out")
			continue
		}
		pod.SecurityContext = next
	}
}

// setSecurity replaces the security context of the container of an operand of NVIDIA's.
func (r *renderer) setSecurity(field string, c *corev1.Container, object *v1.Object) {
	if object.IsEmpty() {
		return
	}
	var want corev1.SecurityContext
	err := object.Decode(&want)
	want.WindowsOptions = nil
	if err == nil {
		err = validSecurity(&want)
	}
	if err != nil {
		r.reportInvalid(field, err.Error(), "is left out")
		return
	}
	c.SecurityContext = &want
}

// validPodSecurity returns an error that describes why no pod can have a security context.
func validPodSecurity(s *corev1.PodSecurityContext, hostNetwork bool) error {
	ids := slices.Clone(s.SupplementalGroups)
	for _, id := range []*int64{s.FSGroup, s.RunAsUser, s.RunAsGroup} {
		if id != nil {
			ids = append(ids, *id)
		}
	}
	names := map[string]bool{}
	for _, c := range s.Sysctls {
		name := strings.ReplaceAll(c.Name, "/", ".")
		if !sysctlName.MatchString(c.Name) || len(c.Name) > 253 || names[name] || hostNetwork && strings.HasPrefix(name, "net.") {
			return fmt.Errorf("sysctl %q", c.Name)
		}
		names[name] = true
	}
	return errors.Join(validIDs(ids...), validSeccomp(s.SeccompProfile), validAppArmor(s.AppArmorProfile),
		oneOf("fsGroupChangePolicy", s.FSGroupChangePolicy, corev1.FSGroupChangeAlways, corev1.FSGroupChangeOnRootMismatch),
		oneOf("supplementalGroupsPolicy", s.SupplementalGroupsPolicy, corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict),
		oneOf("seLinuxChangePolicy", s.SELinuxChangePolicy, corev1.SELinuxChangePolicyRecursive, corev1.SELinuxChangePolicyMountOption))
}

var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

// validSecurity returns an error that describes why no container can have a security context.
func validSecurity(s *corev1.SecurityContext) error {
	var ids []int64
	for _, id := range []*int64{s.RunAsUser, s.RunAsGroup} {
		if id != nil {
			ids = append(ids, *id)
		}
	}
	isTrue := func(b *bool) bool { return b != nil && *b }
	escalates := isTrue(s.Privileged) || s.Capabilities != nil && slices.Contains(s.Capabilities.Add, "CAP_SYS_ADMIN")
	if s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation && escalates {
		return errors.New("allowPrivilegeEscalation: false of a privileged container")
	}
	if s.ProcMount != nil && *s.ProcMount != corev1.DefaultProcMount {
		return fmt.Errorf("procMount %q", *s.ProcMount)
	}
	return errors.Join(validIDs(ids...), validSeccomp(s.SeccompProfile), validAppArmor(s.AppArmorProfile))
}

func validIDs(ids ...int64) error {
	for _, id := range ids {
		if id < 0 || id > math.MaxInt32 {
			return fmt.Errorf("user or group %d", id)
		}
	}
	return nil
}

func validSeccomp(p *corev1.SeccompProfile) error {
	if p == nil {
		return nil
	}
	local := p.LocalhostProfile
	switch p.Type {
	case corev1.SeccompProfileTypeLocalhost:
		if local != nil && *local != "" && !path.IsAbs(*local) && !strings.Contains("/"+*local+"/", "/../") {
			return nil
		}
	case corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined:
		if local == nil {
			return nil
		}
	}
	return fmt.Errorf("seccompProfile of type %q", p.Type)
}

func validAppArmor(p *corev1.AppArmorProfile) error {
	if p == nil {
		return nil
	}
	local := p.LocalhostProfile
	switch p.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		if local != nil && *local != "" && strings.TrimSpace(*local) == *local && len(*local) <= 4095 {
			return nil
		}
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		if local == nil {
			return nil
		}
	}
	return fmt.Errorf("appArmorProfile of type %q", p.Type)
}

// oneOf returns an error unless a value is nil or one of some.
func oneOf[T ~string](name string, value *T, some ...T) error {
	if value == nil || slices.Contains(some, *value) {
		return nil
	}
	return fmt.Errorf("%s %q", name, *value)
}
