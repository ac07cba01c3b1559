package operator

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// scraped are what Prometheus adds to what it scrapes (podmonitor.yaml).
var scraped = []string{"namespace", "pod", "container", "node", "job", "instance"}

// series are the labels of what is shown, by metric.
type series map[string][]map[string]string

var (
	line    = regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? [^ ]+$`)
	pair    = regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)
	matched = regexp.MustCompile(`([a-z_]+) *(=~|!~|!=|=) *"([^"]*)"`)
)

// scrape reads what pods show to Prometheus, on their port "metrics".
func (s *suite) scrape(t *testing.T, selector string) series {
	t.Helper()
	all := series{}
	for _, p := range s.World.Pods(namespace, selector) {
		for _, c := range p.Spec.Containers {
			for _, port := range c.Ports {
				if port.Name != "metrics" || p.DeletionTimestamp != nil {
					continue
				}
				path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy/metrics", p.Namespace, p.Name, port.ContainerPort)
				text, err := s.World.Client.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
				require.NoError(t, err, p.Name)
				for _, m := range line.FindAllStringSubmatch(string(text), -1) {
					labels := map[string]string{}
					for _, l := range pair.FindAllStringSubmatch(m[2], -1) {
						labels[l[1]] = l[2]
					}
					all[m[1]] = append(all[m[1]], labels)
				}
			}
		}
	}
	require.NotEmpty(t, all, "no metrics of %s", selector)
	return all
}

// lacks says why no series is what a selector asks for; "": one is.
func (have series) lacks(name, matchers string) string {
	if len(have[name]) == 0 {
		return "there is no " + name
	}
	for _, labels := range have[name] {
		if matches(labels, matchers) {
			return ""
		}
	}
	return fmt.Sprintf("no %s is {%s}; one is %v", name, matchers, have[name][0])
}

func matches(labels map[string]string, matchers string) bool {
	for _, m := range matched.FindAllStringSubmatch(matchers, -1) {
		value, has := labels[m[1]]
		if slices.Contains(scraped, m[1]) {
			continue
		}
		as := m[3]
		if !strings.HasSuffix(m[2], "~") {
			as = regexp.QuoteMeta(as)
		}
		if !has || regexp.MustCompile("^(?:"+as+")$").MatchString(value) != !strings.HasPrefix(m[2], "!") {
			return false
		}
	}
	return true
}

// showsFailure looks that the operator shows what an alert waits for.
func (s *suite) showsFailure(t *testing.T, name, matchers string) {
	t.Helper()
	s.until(t, fmt.Sprintf("Prometheus is shown %s{%s}", name, matchers), func() error {
		if lacks := s.scrape(t, "app=gpu-operator").lacks(name, matchers); lacks != "" {
			return fmt.Errorf("%s", lacks)
		}
		return nil
	})
}
