# Planted bugs in speculation: each mutant is a copy of one source file with one change, linked in front of the library;
# its test passes when planted_bug_check finds other texts, or fewer right guesses. An argument more names other checks.
function(spec_mutant NAME FILE FROM TO)
  ww_mutated_copy(mutated ${NAME} ${FILE} "${FROM}" "${TO}")
  set(check planted_bug_objects)
  if(ARGC GREATER 4)
    set(check ${ARGV4})
  endif()
  add_executable(spec_mutant_${NAME} ${mutated} $<TARGET_OBJECTS:${check}>)
  target_compile_options(spec_mutant_${NAME} PRIVATE -O1)
  target_link_libraries(spec_mutant_${NAME} PRIVATE ww_engine GTest::gtest)
  add_test(NAME spec_mutant_${NAME} COMMAND spec_mutant_${NAME} --expect-failure WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(spec_mutant_${NAME} PROPERTIES TIMEOUT 120)
endfunction()

add_library(planted_bug_objects OBJECT planted_bug_check.cc)
target_link_libraries(planted_bug_objects PUBLIC ww_engine GTest::gtest)
add_executable(planted_bug_check $<TARGET_OBJECTS:planted_bug_objects>)
target_link_libraries(planted_bug_check PRIVATE ww_engine GTest::gtest)
add_test(NAME planted_bug_check COMMAND planted_bug_check WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
add_library(state_bug_objects OBJECT state_bug_check.cc)
target_link_libraries(state_bug_objects PUBLIC ww_engine GTest::gtest)
add_executable(state_bug_check $<TARGET_OBJECTS:state_bug_objects>)
target_link_libraries(state_bug_check PRIVATE ww_engine GTest::gtest)
add_test(NAME state_bug_check COMMAND state_bug_check WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})

# What the target sees.
spec_mutant(sibling_is_seen batch/batch_builder.cc
  [[mask[seen / 32] |= 1u << (seen % 32);]]
  [[mask[seen / 32] |= 1u << (seen % 32); if (seen > 1) mask[(seen - 1) / 32] |= 1u << ((seen - 1) % 32);]])
spec_mutant(parent_is_not_seen batch/batch_builder.cc
  [[seen = proposal.parent(seen)]]
  [[seen = 0]])
spec_mutant(positions_by_row batch/batch_builder.cc
  [[positions_[node_0] + proposal.depth(node)]]
  [[positions_[node_0] + node]])
spec_mutant(ngram_positions_by_row batch/batch_builder.cc
  [[row.start + proposal.depth(node)]]
  [[row.start + node]])
# What is kept of it.
spec_mutant(rejected_kv_stays engine/device_worker.cc
  [[parts_.cache->copy_tokens(from, to, 1); });]]
  [[(void)from, (void)to; });]])
spec_mutant(accepted_kv_goes_the_other_way engine/device_worker.cc
  [[parts_.cache->copy_tokens(from, to, 1); });]]
  [[parts_.cache->copy_tokens(to, from, 1); });]])
spec_mutant(bonus_from_the_row_before engine/verify.cc
  [[row.logits_row = walk.logits_row(slot) - first_row;]]
  [[row.logits_row = walk.logits_row(slot) - first_row - (walk.depth(slot) > 0);]])
spec_mutant(drawn_for_another_position engine/verify.cc
  [[row.position += walk.depth(slot);]]
  [[]])
spec_mutant(accepted_nodes_in_another_order engine/verify.cc
  [[+ path.num_nodes++] = node;]]
  [[+ path.num_nodes] = path.num_nodes; ++path.num_nodes;]])
# What drafts read: fewer are right.
spec_mutant(draft_writes_one_slot_of_a_page spec/drafter.cc
  [[* page_size + position % page_size;]]
  [[* page_size;]])
spec_mutant(prefix_from_what_the_drafts_pool_had_there spec/drafter.cc
  [[return model_->copy_pages(copies);]]
  [[return {};]])
spec_mutant(tree_goes_on_from_one_state spec/drafter.cc
  [[one.topk, pass_.keep[row]);]]
  [[one.topk, pass_.keep[0]);]])
spec_mutant(draft_goes_on_from_its_first_guess spec/drafter.cc
  [[-1 - one.choices.back()]]
  [[-1 - one.choices.front()]])
spec_mutant(first_guesses_of_another_request spec/drafter.cc
  [[taken->subspan(i * options_.topk, options_.topk)]]
  [[taken->subspan(0, options_.topk)]])
# What recurrent layers keep.
spec_mutant(states_stay engine/device_worker.cc
  [[return parts_.model->commit_states(accepted_, *parts_.recurrent, *parts_.team);]]
  [[return {};]] state_bug_objects)
spec_mutant(states_go_to_the_first_node engine/device_worker.cc
  [[walk_.nodes(slot).back()]]
  [[walk_.nodes(slot).front()]] state_bug_objects)
spec_mutant(states_go_one_node_too_far engine/device_worker.cc
  [[walk_.nodes(slot).back()]]
  [[walk_.nodes(slot).back() + (walk_.nodes(slot).back() < 2 ? 1 : 0)]] state_bug_objects)
spec_mutant(states_of_requests_are_swapped engine/device_worker.cc
  [[return parts_.model->commit_states(]]
  [[std::reverse(accepted_.begin(), accepted_.end()); return parts_.model->commit_states(]] state_bug_objects)
spec_mutant(checking_moves_states model/layers/recurrent_rows.cc
  [[if (keeps_rows_) phase_ = LinearAttnPhase::target_verify;]]
  [[]] state_bug_objects)
spec_mutant(states_take_trees_for_chains model/layers/recurrent_rows.cc
  [[batch_.parents = batch.tree_parents.data();]]
  [[batch_.parents = nullptr;]] state_bug_objects)
spec_mutant(states_read_rows_of_the_last_layer model/layers/gdn_mixer.cc
  [[gdn.rows = w_.rows_.of_layer(state_layer_);]]
  [[gdn.rows = w_.rows_.of_layer(0);]] state_bug_objects)
spec_mutant(checkpoint_after_the_step sched/states.cc
  [[(before ? step.state_loads : step.state_saves)]]
  [[step.state_saves]] state_bug_objects)
spec_mutant(checkpoint_of_another_position sched/states.cc
  [[before ? row.start : request.scheduled]]
  [[request.scheduled]] state_bug_objects)
