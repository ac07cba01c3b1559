package state

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxTerms bounds the terms of a node selector: the scheduler compares each with each node.
const maxTerms = 64

// validAffinity returns an error that describes why no pod can have an affinity.
func validAffinity(a *corev1.Affinity) error {
	var errs []error
	if n := a.NodeAffinity; n != nil {
		if required := n.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			if len(required.NodeSelectorTerms) == 0 {
				errs = append(errs, errors.New("a node selector without terms"))
			}
			if n := len(required.NodeSelectorTerms); n > maxTerms {
				errs = append(errs, fmt.Errorf("a node selector of %d terms, which are more than the %d that gpuready takes,", n, maxTerms))
			}
			for _, term := range required.NodeSelectorTerms {
				errs = append(errs, validNodeTerm(term))
			}
		}
		for _, p := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			errs = append(errs, validWeight(p.Weight), validNodeTerm(p.Preference))
		}
	}
	if p := a.PodAffinity; p != nil {
		errs = append(errs, validPodTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution))
	}
	if p := a.PodAntiAffinity; p != nil {
		errs = append(errs, validPodTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution))
	}
	for _, err := range errs {
		if err != nil {
			return err // one is enough for a report
		}
	}
	return nil
}

func validWeight(weight int32) error {
	if weight < 1 || weight > 100 {
		return fmt.Errorf("weight %d, which is not between 1 and 100", weight)
	}
	return nil
}

func validNodeTerm(term corev1.NodeSelectorTerm) error {
	for _, r := range term.MatchExpressions {
		if len(validation.IsQualifiedName(r.Key)) > 0 || !validNodeRequirement(r) {
			return fmt.Errorf("requirement %s %s %q of a node", r.Key, r.Operator, r.Values)
		}
	}
	for _, r := range term.MatchFields {
		one := len(r.Values) == 1 && (r.Operator == corev1.NodeSelectorOpIn || r.Operator == corev1.NodeSelectorOpNotIn)
		if r.Key != metav1.ObjectNameField || !one || len(validation.IsDNS1123Subdomain(r.Values[0])) > 0 {
			return fmt.Errorf("requirement %s %s %q of a node's fields", r.Key, r.Operator, r.Values)
		}
	}
	return nil
}

// validNodeRequirement reports whether a requirement has the values that its operator needs.
func validNodeRequirement(r corev1.NodeSelectorRequirement) bool {
	for _, value := range r.Values {
		if len(validation.IsValidLabelValue(value)) > 0 {
			return false
		}
	}
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		return len(r.Values) > 0
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		return len(r.Values) == 0
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			return false
		}
		_, err := strconv.ParseInt(r.Values[0], 10, 64)
		return err == nil
	}
	return false
}

func validPodTerms(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) error {
	for _, p := range preferred {
		if err := validWeight(p.Weight); err != nil {
			return err
		}
		required = append(slices.Clip(required), p.PodAffinityTerm)
	}
	for _, term := range required {
		if len(validation.IsQualifiedName(term.TopologyKey)) > 0 {
			return fmt.Errorf("topologyKey %q", term.TopologyKey)
		}
		for _, namespace := range term.Namespaces {
			if len(validation.IsDNS1123Label(namespace)) > 0 {
				return fmt.Errorf("namespace %q", namespace)
			}
		}
		if len(term.MatchLabelKeys)+len(term.MismatchLabelKeys) > 0 {
			return errors.New("matchLabelKeys or mismatchLabelKeys, which gpuready does not support,")
		}
		for _, selector := range []*metav1.LabelSelector{term.LabelSelector, term.NamespaceSelector} {
			if errs := metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, field.NewPath("labelSelector")); len(errs) > 0 {
				return errs[0]
			}
		}
	}
	return nil
}
