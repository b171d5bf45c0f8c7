# Planted bugs: proof that the simulation can fail. Each mutant is a copy of one source file with
# one change, linked in front of the library; its test passes when a random schedule finds the bug.
function(sim_mutant NAME FILE FROM TO)
  ww_mutated_copy(mutated ${NAME} ${FILE} "${FROM}" "${TO}")
  add_executable(sim_mutant_${NAME} ${mutated})
  target_compile_options(sim_mutant_${NAME} PRIVATE -O0)
  target_link_libraries(sim_mutant_${NAME} PRIVATE sim_objects)
  add_test(NAME sim_mutant_${NAME} COMMAND sim_mutant_${NAME} --schedules 20000 --expect-failure)
  set_tests_properties(sim_mutant_${NAME} PROPERTIES TIMEOUT 120)
endfunction()

sim_mutant(pages_freed_while_in_flight sched/scheduler.cc
  [[draining_.push_back(&request);]]
  [[draining_.push_back(&request), release_pages(request);]])
sim_mutant(displaced_page_freed_at_once sched/scheduler.cc
  [[deferred_.push_back({in_flight_.back().number, page,]]
  [[deferred_.push_back({0, page,]])
sim_mutant(token_cached_before_its_kv sched/scheduler.cc
  [[std::min(request.written, request.num_tokens())]]
  [[std::min(static_cast<int>(request.pages.size()) * pool_.page_size(), request.num_tokens())]])
sim_mutant(wrong_future_token sched/scheduler.cc
  [[row.future_slot = request.sample_slot;]]
  [[row.future_slot = 0;]])
sim_mutant(abort_before_prefill_leaks sched/scheduler.cc
  [[  release_pages(request);
  released_]]
  [[  if (request.written > 0) release_pages(request);
  released_]])
sim_mutant(tail_page_shared_not_copied sched/admission.cc
  [[step.copies.push_back({match.tail_pages[g], request.pages[shared_pages * num_groups_ + g], match.tail_tokens});]]
  [[pool_.ref(match.tail_pages[g]), pool_.unref(request.pages[shared_pages * num_groups_ + g]),
        request.pages[shared_pages * num_groups_ + g] = match.tail_pages[g];]])
sim_mutant(copy_source_not_held sched/admission.cc
  [[deferred_.push_back({step.number, match.tail_pages[g],]]
  [[deferred_.push_back({0, match.tail_pages[g],]])
sim_mutant(prompt_logits_skipped sched/admission.cc
  [[return std::min(request.num_tokens() - 1, request.logits_from);]]
  [[return request.num_tokens() - 1;]])
sim_mutant(waits_for_one_that_is_gone sched/admission.cc
  [[leader != requests_.end() && !leader->second->prompt_cached]]
  [[leader == requests_.end() || !leader->second->prompt_cached]])
sim_mutant(step_over_its_token_bound sched/admission.cc
  [[    if (exceeds_budget(matched)) return false;]]
  [[]])
sim_mutant(retraction_forgets_a_token sched/decode.cc
  [[  leave_running(request);
  release_pages(request);]]
  [[  leave_running(request);
  request.tokens.pop_back();
  release_pages(request);]])
sim_mutant(match_one_token_too_long kv/radix_tree.cc
  [[at.tail_tokens = tail_tokens;]]
  [[at.tail_tokens = tail_tokens + 1;]])
sim_mutant(salt_ignored kv/radix_tree.cc
  [[walk(root_for(salt), tokens)]]
  [[walk(root_for(std::string()), tokens)]])
sim_mutant(split_forgets_locks kv/radix_tree.cc
  [[upper->locks = node->locks;]]
  [[upper->locks = 0;]])
sim_mutant(eviction_skips_unref kv/radix_tree_evict.cc
  [[disown(leaf->pages[i], static_cast<int>(i) % num_groups_);
  drop_node(leaf);]]
  [[(void)i;
  drop_node(leaf);]])
sim_mutant(window_left_one_page_early sched/windows.cc
  [[group.first_seen(request.written) / pool_.page_size();]]
  [[group.first_seen(request.written) / pool_.page_size() + 1;]])
sim_mutant(window_left_before_the_commit sched/windows.cc
  [[group.first_seen(request.written) / pool_.page_size();]]
  [[group.first_seen(request.scheduled) / pool_.page_size();]])
sim_mutant(hit_without_its_window kv/radix_tree.cc
  [[if (full_groups_ < num_groups_) limit_to_windows(at);]]
  [[]])
sim_mutant(blank_entry_keeps_its_page batch/batch_builder.cc
  [[std::fill(table + known.num_blank[g], table + std::max(num_blank, known.num_blank[g]), cache_.blank_page);]]
  [[]])
sim_mutant(healed_page_without_a_reference kv/radix_tree.cc
  [[      own(mine, g);
      track_windows(child);]]
  [[      track_windows(child);]])
sim_mutant(rejected_proposal_kept sched/scheduler.cc
  [[request.scheduled = request.written = row.start + static_cast<int>(tokens.size());]]
  [[request.scheduled = request.written = row.start + static_cast<int>(tokens.size()) + 1;]])
sim_mutant(proposals_before_the_last_token_is_known sched/decode.cc
  [[(!waits_for_tokens_ || request.uncommitted_steps == 0) &&]]
  [[]])
sim_mutant(proposals_past_the_end_told sched/scheduler.cc
  [[i < tokens.size() && event.finish == StepEvent::Finish::none;]]
  [[i < tokens.size();]])
sim_mutant(proposals_without_pages sched/decode.cc
  [[std::clamp(covered_tokens(request) - request.scheduled, 0, wanted)]]
  [[wanted]])
sim_mutant(proposal_sampled_from_its_last_node batch/batch_builder.cc
  [[static_cast<int32_t>(logits_rows_.size()) - 1 - proposal.size();]]
  [[static_cast<int32_t>(logits_rows_.size()) - 1;]])
sim_mutant(state_of_the_slot_before sched/states.cc
  [[step.state_loads.push_back({match.state_slot, request.state_slot});]]
  [[]])
sim_mutant(checkpoint_one_token_late sched/states.cc
  [[request.saved_states.push_back({position, slot});
  request.state_saved_at]]
  [[request.saved_states.push_back({position - 1, slot});
  request.state_saved_at]])
sim_mutant(checkpoint_within_a_row_one_token_late sched/states.cc
  [[step.state_checkpoints.push_back({position - row.start, slot});]]
  [[step.state_checkpoints.push_back({std::min(position - row.start + 1, row.num_tokens - 1), slot});]])
sim_mutant(checkpoints_of_the_row_before batch/batch_builder.cc
  [[for (int i = row.first_checkpoint; i < row.first_checkpoint + row.num_checkpoints; ++i) {]]
  [[for (int i = 0; i < row.num_checkpoints; ++i) {]])
sim_mutant(checkpoint_published_without_its_tokens sched/states.cc
  [[if (saved.position > tokens) return false;]]
  [[]])
sim_mutant(checkpoint_that_gave_way_is_kept sched/states.cc
  [[  saved.erase(earliest);
]]
  [[]])
sim_mutant(checkpoint_gives_way_to_its_own_row sched/states.cc
  [[if (it->position > row.start || it->position]]
  [[if (it->position]])
sim_mutant(state_leaked_on_abort sched/states.cc
  [[for (const Request::SavedState& saved : request.saved_states) states_->unref(saved.slot);]]
  [[]])
sim_mutant(checkpoint_given_up_while_it_is_read sched/states.cc
  [[deferred_states_.push_back({step.number, match.state_slot});]]
  [[states_->unref(match.state_slot);]])
sim_mutant(prompt_cut_anywhere sched/states.cc
  [[if (end < request.prefill_len) end = last_cut(end);]]
  [[]])
sim_mutant(checkpoint_where_nothing_may_be_cut sched/states.cc
  [[const int branch = last_cut(match.kv_tokens);]]
  [[const int branch = match.kv_tokens;]])
sim_mutant(checkpoint_of_generated_tokens sched/states.cc
  [[state_cut_tokens() > 1 && (!row.prefill || position]]
  [[state_cut_tokens() > 1 && (position]])
sim_mutant(generated_tokens_computed_again sched/admission.cc
  [[if (state_cut_tokens() > 1) return remaining;]]
  [[]])
sim_mutant(match_between_checkpoints kv/radix_tree.cc
  [[if (states_ != nullptr) limit_to_states(at);]]
  [[]])
sim_mutant(split_leaves_checkpoints_below kv/radix_tree.cc
  [[moved->second->node = upper;]]
  [[]])
sim_mutant(stale_page_table_row batch/batch_builder.cc
  [[known.id == row.id && known.pages_version == row.pages_version]]
  [[known.id == row.id]])
