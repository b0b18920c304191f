-- How each node is sent volumes with tokens. What a workload was started with must not change under it, so the choice is
-- written down when it is first made and stays, whatever gateway serves the node and however that is started; an
-- operator alone overrules it. The salt makes names that nobody can guess and that stay the same for good.
create table horchestra.token_forms (
    node       text collate "C" primary key,
    as_secrets boolean     not null,
    salt       uuid        not null default gen_random_uuid(),
    chosen_at  timestamptz not null default clock_timestamp()
);

-- Answers the choice that is in force afterwards.
create function horchestra.choose_token_form(
    node_ text, wanted boolean, overrule boolean, out as_secrets boolean, out salt uuid
)
language sql volatile as $$
    insert into horchestra.token_forms as f (node, as_secrets) values (node_, wanted)
    on conflict (node) do update
        set as_secrets = case when overrule then excluded.as_secrets else f.as_secrets end,
            chosen_at = case when overrule and f.as_secrets <> excluded.as_secrets
                             then excluded.chosen_at else f.chosen_at end
    returning f.as_secrets, f.salt
$$;
