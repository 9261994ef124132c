"""Clouds' notices that a machine will be taken: who is asked, what the answers mean, and when that is news.

Standard library alone. It does not know Ray: whoever calls says what to do with a notice.
"""
