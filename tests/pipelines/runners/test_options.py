"""Beam's options with views that are made once."""

import copy
import pickle

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

from shardmill.transforms.runtime.beam_steps import CachedOptions

FLAGS = ["--experiments=a", "--project=p", "--impersonate_service_account=me"]


def test_views_share_values_and_are_made_once():
    options = CachedOptions(FLAGS)
    cloud = options.view_as(GoogleCloudOptions)
    assert options.view_as(GoogleCloudOptions) is cloud
    assert options.get_all_options() == PipelineOptions(FLAGS).get_all_options()
    cloud.project = "q"
    assert options.view_as(GoogleCloudOptions).project == "q"
    assert options.get_all_options()["project"] == "q"


def test_a_copy_has_its_own_values_and_does_not_impersonate():
    options = CachedOptions(FLAGS)
    cloud = options.view_as(GoogleCloudOptions)
    for copied in (copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        other = copied.view_as(GoogleCloudOptions)
        assert (other.project, other.impersonate_service_account) == ("p", None)
        other.project = "q"
        assert copied.get_all_options()["project"] == "q"
        assert (cloud.project, cloud.impersonate_service_account) == ("p", "me")
