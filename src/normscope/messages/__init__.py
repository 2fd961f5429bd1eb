"""The message catalog: the texts of the studio's page and of exported models, by key, one file per tab and language.

Findings, claims, errors and logs are in English only and stay where they are used.
"""
