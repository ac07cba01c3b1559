package main

import (
	"fmt"
	"strings"
)

const description = `From a bare GPU node to a running CUDA job: one ClusterPolicy describes the GPU stack of a
cluster, and the operator keeps driver, toolkit, device plugin and validator on exactly the
nodes that need them, in the variant of each node's operating system and kernel. It reports
the progress of each node, and the reason where it does not progress.

Drivers are built with OpenShift's Driver Toolkit, without an entitlement, or loaded
precompiled. Node Feature Discovery must be installed first.
`

// serviceVersion returns the ClusterServiceVersion, by which OLM installs the operator. documents are
// those of static/operator.yaml, examples the policies for alm-examples, and rights the operator's
// rights. It changes the Deployment in documents.
func serviceVersion(version string, documents, examples []object, rights []right) (object, error) {
	alm, err := compact(examples)
	if err != nil {
		return nil, err
	}
	deployment := find(documents, "Deployment", "gpuready-operator")
	if deployment == nil {
		return nil, fmt.Errorf("static/operator.yaml has no Deployment gpuready-operator")
	}
	spec := at(deployment, "spec")
	image, err := adaptDeployment(spec)
	if err != nil {
		return nil, err
	}
	related, err := relatedImages(image, spec)
	if err != nil {
		return nil, err
	}
	own, cluster, err := permissions(documents, rights)
	if err != nil {
		return nil, err
	}
	csv := object{
		"apiVersion": "operators.coreos.com/v1alpha1",
		"kind":       "ClusterServiceVersion",
		"metadata": object{
			"name":      name + ".v" + version,
			"namespace": "placeholder",
			"annotations": object{
				"alm-examples":   alm,
				"categories":     "AI/Machine Learning, OpenShift Optional",
				"containerImage": image,
				"description":    "From a bare GPU node to a running CUDA job",
				"repository":     "https://github.com/gpuready/gpuready",
				"support":        "gpuready",
				"operatorframework.io/suggested-namespace":     "gpuready-system",
				"operatorframework.io/initialization-resource": initialPolicy(examples),
				"operators.openshift.io/valid-subscription":    "[]",
			},
			"labels": object{},
		},
		"spec": object{
			"displayName":    "gpuready",
			"description":    description,
			"version":        version,
			"minKubeVersion": "1.25.0",
			"maturity":       maturity,
			"keywords":       []string{"gpu", "cuda", "nvidia", "driver"},
			"provider":       object{"name": "gpuready", "url": "https://github.com/gpuready/gpuready"},
			"maintainers":    []any{object{"name": "gpuready", "email": "gpuready@users.noreply.github.com"}},
			"links":          []any{object{"name": "Documentation", "url": "https://github.com/gpuready/gpuready/tree/main/docs"}},
			"icon":           []any{object{"base64data": icon, "mediatype": "image/svg+xml"}},
			"installModes": []any{
				object{"type": "OwnNamespace", "supported": true},
				object{"type": "SingleNamespace", "supported": true},
				object{"type": "MultiNamespace", "supported": false},
				object{"type": "AllNamespaces", "supported": false},
			},
			"install": object{"strategy": "deployment", "spec": object{
				"clusterPermissions": cluster,
				"permissions":        own,
				"deployments":        []any{object{"name": "gpuready-operator", "label": at(deployment, "metadata")["labels"], "spec": spec}},
			}},
			"customresourcedefinitions": object{"owned": []any{owned(), ownedDriver()}},
			"relatedImages":             related,
		},
	}
	addClaims(at(csv, "metadata", "annotations"), at(csv, "metadata", "labels"), image)
	return csv, nil
}

// adaptDeployment changes the spec of the Deployment for a bundle, and returns the operator's image.
// It removes the variable OPERAND_NAMESPACE: the lifecycle manager chooses the operator's namespace,
// in which the operands then run, too.
func adaptDeployment(spec object) (string, error) {
	containers, _ := at(spec, "template", "spec")["containers"].([]any)
	if len(containers) != 1 {
		return "", fmt.Errorf("the Deployment has %d containers, not one", len(containers))
	}
	c, _ := containers[0].(object)
	variables, _ := c["env"].([]any)
	var kept []any
	for _, v := range variables {
		if one, _ := v.(object); one["name"] != "OPERAND_NAMESPACE" {
			kept = append(kept, v)
		}
	}
	c["env"] = kept
	image, _ := c["image"].(string)
	return image, nil
}

// relatedImages lists all our images: as the operator's variables name them, else with the registry
// and version of the operator's image, whose digest is of no other image. Tools that mirror a catalogue
// read the list. deployment is the spec of the operator's Deployment.
func relatedImages(operator string, deployment object) ([]any, error) {
	named := map[string]string{}
	containers, _ := at(deployment, "template", "spec")["containers"].([]any)
	for _, c := range containers {
		variables, _ := c.(object)["env"].([]any)
		for _, v := range variables {
			one, _ := v.(object)
			variable, _ := one["name"].(string)
			named[variable], _ = one["value"].(string)
		}
	}
	all := []any{object{"name": "operator", "image": operator}}
	for _, one := range []string{"toolkit", "device-plugin", "dra-driver", "validator", "driver-simulator"} {
		variable := "RELATED_IMAGE_" + strings.ToUpper(strings.ReplaceAll(one, "-", "_"))
		image := named[variable]
		if image == "" && isPinned(operator) {
			return nil, fmt.Errorf("relatedImages: %s: the operator's image has a digest, and the operator no variable %s with that of this image", one, variable)
		}
		if image == "" {
			image = strings.Replace(operator, "/operator:", "/"+one+":", 1)
		}
		all = append(all, object{"name": one, "image": image})
	}
	return all, nil
}

// initialPolicy returns the ClusterPolicy, as JSON, that OpenShift's console proposes to create.
func initialPolicy(examples []object) string {
	text, _ := compact(examples[0]) // no error: it was parsed from YAML
	return text
}

// icon is the image of a chip.
const icon = "PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciIHZpZXdCb3g9IjAgMCAzMiAzMiI+PHBhdGggZD0iTTggOGgxNnYxNkg4ek0xMiAydjZNMTYgMnY2TTIwIDJ2Nk0xMiAyNHY2TTE2IDI0djZNMjAgMjR2Nk0yIDEyaDZNMiAxNmg2TTIgMjBoNk0yNCAxMmg2TTI0IDE2aDZNMjQgMjBoNiIgZmlsbD0ibm9uZSIgc3Ryb2tlPSIjMzMzIiBzdHJva2Utd2lkdGg9IjIiLz48L3N2Zz4="
