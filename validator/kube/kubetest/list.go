package kubetest

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// listPods lists the pods of all namespaces, by spec.nodeName and labels.
func (s *Server) listPods(r *http.Request) (any, error) {
	on, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return nil, err
	}
	having, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, err
	}
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	for _, key := range slices.Sorted(maps.Keys(s.pods)) {
		p := s.pods[key]
		if on.Matches(fields.Set{"spec.nodeName": p.Spec.NodeName}) && having.Matches(labels.Set(p.Labels)) {
			list.Items = append(list.Items, *p)
		}
	}
	return list, nil
}

// listEvents lists the Events of a namespace, by their involved object.
func (s *Server) listEvents(r *http.Request, namespace string) (any, error) {
	about, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return nil, err
	}
	list := &corev1.EventList{TypeMeta: metav1.TypeMeta{Kind: "EventList", APIVersion: "v1"}}
	for _, key := range slices.Sorted(maps.Keys(s.events)) {
		e := s.events[key]
		set := fields.Set{"involvedObject.kind": e.InvolvedObject.Kind, "involvedObject.name": e.InvolvedObject.Name}
		if strings.HasPrefix(key, namespace+"/") && about.Matches(set) {
			list.Items = append(list.Items, *e)
		}
	}
	return list, nil
}
