// The controller's decisions, and what it reads of Kubernetes.
#include "kubernetes/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "http/json_reader.h"

namespace loramux::plan_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

LoraAdapterObject Object(const std::string& object, const std::string& name, const std::string& source,
                         const std::string& created = "2026-01-01T00:00:00Z") {
  return {.object = object, .created = created, .generation = 1, .name = name, .wanted = {.source = source}};
}

struct World {
  ControllerView view{.space = "ml"};
  void Add(LoraAdapterObject object) { view.objects[object.object] = object; }
  // What the plan would do, done.
  ControllerPlan Run() {
    ControllerPlan plan = PlanController(view);
    for (const auto& [name, write] : plan.writes) {
      view.owners[name] = write.owner;
      FleetAdapter& entry = view.catalogue[name];
      const std::int64_t generation = entry.generation;
      entry = write.entry;
      entry.generation = generation + 1;
    }
    for (const std::string& name : plan.removals) {
      view.catalogue.erase(name);
      view.owners.erase(name);
    }
    for (const auto& [object, status] : plan.status_changes) view.objects.at(object).status = status;
    return plan;
  }
};

TEST(ControllerPlan, AnObjectBecomesAnEntryAndItsStatusWhatServersSay) {
  World world;
  world.Add(Object("sql", "sql-v1", "s3://b/sql"));
  auto plan = world.Run();
  EXPECT_THAT(plan.writes, ElementsAre(Pair("sql-v1", testing::Field(&ControllerPlan::Write::owner, "ml/sql"))));
  EXPECT_EQ(world.view.objects.at("sql").status.ready, "Unknown");
  world.Run();
  world.view.servers = {{"sql-v1", {.loaded = true, .generation = 1}},
                        {"sql-v1", {.loaded = true, .generation = 1}},
                        {"sql-v1", {.loaded = true, .generation = 0}},
                        {"other", {.loaded = true, .generation = 1}}};
  plan = world.Run();
  EXPECT_THAT(plan.writes, IsEmpty());
  EXPECT_EQ(plan.status_changes.at("sql").ready, "True");
  EXPECT_EQ(plan.status_changes.at("sql").loaded, 2);
  world.view.servers[1].second = {.loaded = false, .generation = 1, .error = "rank 99"};
  EXPECT_THAT(world.Run().status_changes.at("sql").message, HasSubstr("rank 99"));
  EXPECT_EQ(world.view.objects.at("sql").status.reason, "Refused");
  EXPECT_THAT(world.Run().status_changes, IsEmpty());  // nothing is said twice
}

TEST(ControllerPlan, AChangeIsWrittenAndADeletionRemovesOnlyWhatItOwned) {
  World world;
  world.view.catalogue["loaded-by-hand"] = {.source = "/data/x", .generation = 3};
  world.view.owners["of-another-namespace"] = "other/x";
  world.Add(Object("a", "a", "s3://b/a"));
  world.Run();
  world.view.objects.at("a").wanted.digest = std::string(64, 'a');
  EXPECT_EQ(world.Run().writes.at("a").entry.digest, std::string(64, 'a'));
  world.view.objects.clear();
  const auto plan = world.Run();
  EXPECT_THAT(plan.removals, ElementsAre("a"));
  EXPECT_THAT(world.view.catalogue, ElementsAre(Pair("loaded-by-hand", testing::_)));
}

TEST(ControllerPlan, TheOlderObjectHasTheName) {
  World world;
  world.Add(Object("a", "x", "s3://b/a", "2026-01-02T00:00:00Z"));
  world.Add(Object("b", "x", "s3://b/b", "2026-01-01T00:00:00Z"));
  world.Add(Object("c", "y", "s3://b/c"));
  world.view.owners["y"] = "other/c";
  auto plan = world.Run();
  EXPECT_EQ(plan.writes.at("x").entry.source, "s3://b/b");
  EXPECT_EQ(plan.status_changes.at("a").reason, "NameTaken");
  EXPECT_EQ(plan.status_changes.at("c").reason, "NameTaken");
  EXPECT_EQ(plan.writes.size(), 1u);
  world.view.objects.erase("b");
  plan = world.Run();
  EXPECT_EQ(plan.writes.at("x").entry.source, "s3://b/a");
  EXPECT_THAT(plan.removals, IsEmpty());
}

TEST(ControllerPlan, AnInvalidObjectIsToldAndChangesNothing) {
  const auto list = ParseLoraAdapterList(R"({"metadata":{"resourceVersion":"7"},"items":[
    {"metadata":{"name":"a"},"spec":{"source":"gs://b/x"}},
    {"metadata":{"name":"b"},"spec":{"source":"s3://b/x","name":"x,y"}},
    {"metadata":{"name":"c"},"spec":{"source":"s3://b/x","digest":"abc"}},
    {"metadata":{"name":"d","generation":4},"spec":{"source":"file:///x","replicas":3,"pinned":true}}]})");
  ASSERT_TRUE(list.ok()) << list.error().message;
  EXPECT_EQ(list->resource_version, "7");
  World world;
  for (const auto& object : list->objects) world.Add(object);
  const auto plan = world.Run();
  EXPECT_THAT(plan.writes, ElementsAre(Pair("d", testing::_)));
  EXPECT_TRUE(plan.writes.at("d").entry.pinned);
  EXPECT_EQ(plan.writes.at("d").entry.replicas, 3);
  for (const auto& [object, word] : {std::pair("a", "spec.source"), {"b", "spec.name"}, {"c", "spec.digest"}}) {
    EXPECT_EQ(plan.status_changes.at(object).reason, "Invalid");
    EXPECT_THAT(plan.status_changes.at(object).message, HasSubstr(word));
  }
}

TEST(LoraAdapter, HostileAnswersAreRefused) {
  for (const char* text : {"", "[]", "{}", R"({"items":{}})", R"({"items":[],"metadata":{}})",
                           R"({"items":[{"metadata":{"name":"../../x"}}],"metadata":{"resourceVersion":"1"}})",
                           R"({"items":[7],"metadata":{"resourceVersion":"1"}})"}) {
    EXPECT_FALSE(ParseLoraAdapterList(text).ok()) << text;
  }
  for (const char* text :
       {"", "{}", R"({"type":"ADDED"})", R"({"type":"NEW","object":{"metadata":{"resourceVersion":"1"}}})",
        R"({"type":"ADDED","object":{"metadata":{"resourceVersion":"1","name":7}}})"}) {
    EXPECT_FALSE(ParseLoraAdapterEvent(text).ok()) << text;
  }
  EXPECT_EQ(ParseLoraAdapterEvent(R"({"type":"ERROR","object":{"code":410}})")->kind, LoraAdapterEvent::Kind::kGone);
}

TEST(LoraAdapter, TheTimeOfAConditionStaysWhileItsStatusDoes) {
  LoraAdapterObject object{.status = {.ready = "True"}, .ready_since = "2026-01-01T00:00:00Z"};
  const auto time = [&](const char* ready) {
    const auto patch = ParseJson(StatusPatch(object, {.ready = ready, .reason = "R"}, "2026-02-02T00:00:00Z"));
    return (*patch)["status"]["conditions"][0]["lastTransitionTime"].get<std::string>();
  };
  EXPECT_EQ(time("True"), "2026-01-01T00:00:00Z");
  EXPECT_EQ(time("False"), "2026-02-02T00:00:00Z");
  EXPECT_EQ(Rfc3339(1'767'225'600), "2026-01-01T00:00:00Z");
}

}  // namespace
}  // namespace loramux::plan_test
