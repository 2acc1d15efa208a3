// Objects of Kubernetes, as YAML.
#pragma once

#include <string>

#include "engine/jobs/job_file.h"

namespace engine::jobs {

// pytorchjob: kubeflow.org/v1, of training-operator 1.9; hyperpod: the same with SageMaker HyperPod's annotations; jobset:
// jobset.x-k8s.io/v1alpha2 of JobSet 0.7; trainjob: trainer.kubeflow.org/v1alpha1 of Kubeflow Trainer 2.2; mpijob: kubeflow.org/v2beta1 of
// mpi-operator 0.6.
std::string KubernetesObject(const recipe::Recipe& recipe, const Job& job, const std::string& kind);

}  // namespace engine::jobs
